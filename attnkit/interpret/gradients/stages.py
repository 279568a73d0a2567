"""The gradients that the adjoint of one stage of a pipeline adds up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from attnkit.inputs import layers
from attnkit.inputs.operands import AttendedTensor
from attnkit.interpret.stage_calls import StageCall
from attnkit.model import Array
from attnkit.model.backward.tape import Reverse
from attnkit.model.hooks import Hook
from attnkit.model.parameters import parameter_axes
from attnkit.records import Labels, Record, Tensor

Axes = tuple[str, ...]


@dataclass
class StageGradients:
    """What the adjoint of one stage adds up.

    inputs      gradients of the tensors of the record that it read, by their names
    tensors     gradients of its parameters, of the files of its flags, and of intermediates
    parameters  the names among `tensors` of what the result depends on: all but intermediates
    layers      gradients of the parameters of a model's layers
    traced      gradients of the intermediates of a whole model, under the names of a trace
    others      if the stage merges, `inputs` for each record that it read after the first
    """

    call: StageCall
    inputs: dict[str, Array] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)
    layers: Reverse = field(default_factory=Reverse)
    traced: dict[str, Tensor] = field(default_factory=dict)
    others: list[dict[str, Array]] = field(default_factory=list)

    def add_input(self, name: str, gradient: Array) -> None:
        """Add the gradient of a tensor of the record that the stage read."""
        self.inputs[name] = self.inputs[name] + gradient if name in self.inputs else gradient

    def add_operand(self, flag: str, gradient: Array) -> None:
        """Add the gradient of a flag's operand: a file, or a tensor of the record."""
        if flag in self.call.piped:
            raise self.call.error(f"its --{flag.replace('_', '-')} is the whole stage before; pass it on in the record")
        operand = self.call.values[flag]
        if isinstance(operand, AttendedTensor) and operand.is_given:
            self.add_input(operand.name, gradient)
        elif flag in self.call.own:
            self.add_input(self.call.own[flag], gradient)
        else:
            labels = {} if operand.tensors["x"].axes is None else operand.labels
            self.add_parameter(flag, gradient, operand.axes_of("x"), labels)

    def add_parameter(
        self, name: str, gradient: Array | None, axes: Axes | None = None, labels: Mapping[str, Labels] | None = None
    ) -> None:
        """Add the gradient of a parameter of the stage, if there is one."""
        if gradient is None:
            return
        if name in self.tensors:
            gradient = gradient + self.tensors[name].array
        axes = axes or parameter_axes("", name)
        self.tensors[name] = Tensor(gradient, axes if len(axes) == gradient.ndim else None, labels or {})
        self.parameters += [name] * (name not in self.parameters)

    def add_weights(self, parts: Mapping[str, Array | None], layer: str = "") -> None:
        """Add gradients of weights: of a model's layer, of files, or drawn ones.

        layer  the kind of the layer that has axes of its own
        """
        values = self.call.values
        if values["model_"] is not None:
            self.layers.add(layers.find_layer(values["model_"], values["layer"], self.call.tool), parts)
            return
        for name, part in parts.items():
            if part is not None and isinstance(values.get(name), Record):
                self.add_operand(name, part)
            else:
                self.add_parameter(name, part, parameter_axes(layer, name))


Outer = dict[str, Array]  # gradients of the tensors that a stage computed; an adjoint removes those it has used
Adjoint = Callable[[StageCall, Outer, StageGradients], None]


def collect_gradients(
    collected: dict[str, Array], outer: Outer, is_kept: Callable[[str], bool] = lambda name: True
) -> Hook:
    """A hook that keeps gradients, and adds those of later stages to them."""

    def hook(name: str) -> Callable[[Array], Array] | None:
        def visit(gradient: Array) -> Array:
            more = outer[name].reshape(gradient.shape).astype(gradient.dtype, copy=False) if name in outer else None
            collected[name] = gradient if more is None else gradient + more
            return collected[name]

        return visit if is_kept(name) else None

    return hook
