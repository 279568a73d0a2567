"""The gradients of one stage of a pipeline, by what it read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from attnkit.inputs.operands import AttendedTensor
from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes.stage_graph import ArrayOrigin
from attnkit.model import Array
from attnkit.model.backward.tape import Reverse
from attnkit.model.hooks import Hook
from attnkit.model.parameters import parameter_axes
from attnkit.records import Labels, Record, Tensor

Axes = tuple[str, ...]
# what a model reads in place of text
SIGNALS: dict[str, Axes] = {
    "image": ("channel", "row", "column"),
    "spectrogram": ("frame", "mel"),
    "samples": ("sample",),
}


@dataclass
class StageGradients:
    """The gradients of one stage.

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
            labels, gradient = (
                {} if operand.tensors["x"].axes is None else operand.labels,
                gradient.reshape(operand["x"].shape),
            )
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

    def add_origin(self, origin: ArrayOrigin, gradient: Array) -> None:
        """Add the gradient of what a stage read: a tensor of a record, or an operand."""
        if origin.part > 1:
            self.others += [{} for _ in range(len(self.others), origin.part - 1)]
            self.others[origin.part - 2][origin.name] = gradient
        elif origin.flag in SIGNALS:
            self.tensors[origin.flag] = Tensor(gradient, SIGNALS[origin.flag])
        elif origin.flag:
            self.add_operand(origin.flag, gradient)
        elif origin.name:
            own = self.call.before.get(origin.name)  # a bias of texts has an axis of heads beside its own
            self.add_input(origin.name, gradient if own is None else gradient.reshape(own.shape))

    def add_weights(self, parts: Mapping[str, Array], axes_of: Callable[[str], Axes | None]) -> None:
        """Add gradients of weights of files, or of drawn ones."""
        for name, part in parts.items():
            if isinstance(self.call.values.get(name), Record):
                self.add_operand(name, part)
            elif self.call.merges:  # W_O and b_O of the first part
                self.add_input(name, part)
            else:
                labels = self.call.result.labels_of(name, 0) if name in self.call.result else None
                self.add_parameter(name, part, axes_of(name), {"vocab": labels} if labels else {})


Outer = dict[str, Array]  # gradients of the tensors that a stage computed; those that are used are removed


def collect_gradients(collected: dict[str, Array], is_kept: Callable[[str], bool]) -> Hook:
    """A hook that keeps gradients."""

    def hook(name: str) -> Callable[[Array], Array] | None:
        return (lambda gradient: collected.setdefault(name, gradient)) if is_kept(name) else None

    return hook
