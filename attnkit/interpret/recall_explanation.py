"""One token of linear attention in words: what it changes in the state, and reads."""

from collections.abc import Sequence

from attnkit.errors import UsageError
from attnkit.formats.streams import name_errors
from attnkit.inputs.recall_stage import RecallStage
from attnkit.interpret.explanation import Explanation, number_word, plain, row_text
from attnkit.model.formulas.recall import RULES
from attnkit.records import Array, Record, Tensor, find_label, row_labels

OF_TOKENS = ("v", "beta", "decay", "held", "error", "written", "read")
MOST_ROWS = 12  # rows of a state that are written one by one


def find_token(record: Record, place: Sequence[int | str]) -> tuple[tuple[int, ...], list[str]]:
    """The head and the token of [B,][H,]TOKEN, and the words of its text.

    An axis of size 1 may be left out. UsageError for a token that is not there.
    """
    axes, shape = record.axes_of("read")[:-1], record["read"].shape[:-1]
    left_out = [at for at in reversed(range(len(shape) - 1)) if shape[at] == 1][: max(len(shape) - len(place), 0)]
    if len(left_out) != len(shape) - len(place):
        needed = [axis for axis, size in zip(axes[:-1], shape, strict=False) if size > 1] + ["token"]
        raise UsageError(f"{len(place)} indices; expected {','.join(needed).upper()}", "--explain")
    indices, cell, words = iter(place), list[int](), list[str]()
    for at, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        words = row_labels(record.labels.get(axis), cell[0] if axes[0] == "batch" and at else 0)
        one = 0 if at in left_out else next(indices)
        with name_errors("--explain"):
            cell.append(find_label(words, one, f"axis {axis}") if isinstance(one, str) else one)
        if cell[-1] >= size:
            raise UsageError(f"index {one} is outside axis {axis} of size {size}", "--explain")
    return tuple(cell), words


def explain_token(record: Record, stage: RecallStage, place: Sequence[int | str]) -> Explanation:
    """Explain how one token changes the state of a head, and what it reads.

    record  has every intermediate of recall

    The tensors are those of the token: q, k, v, beta and decay, the state before and after it, and what is held, its
    error, written and read.
    """
    cell, words = find_token(record, place)
    rule, (*lead, head, token) = RULES[stage.options.rule], cell
    group = head * stage.options.key_heads // stage.options.heads if stage.options.key_heads else head
    keys = (*lead, group, token)
    before = stage.node.options["state"]
    states = record["states"][tuple(lead)][head] if lead else record["states"][head]
    at_first = None if before is None else before[lead[0] if lead else 0, head, :, : stage.value]
    old = states[token - 1] if token else states[0] * 0 if at_first is None else at_first
    own = {name: record[name][keys] for name in ("q", "k")}
    own |= {name: record[name][cell] for name in OF_TOKENS if name in record}
    places = zip(record.axes_of("read"), cell[:-1], record["read"].shape, strict=False)
    named = [f"{axis} {at}" for axis, at, size in places if size > 1]
    lines = [", ".join([*named, f"token {number_word(token, words)}"]), f"S ← {rule.formula}", "state before"]
    lines += state_lines(old)
    if rule.decay != "none":
        lines += [f"decay = {record.tensor('decay').formula} = {number(own['decay'])}: the state is"]
        lines += state_lines(old * (own["decay"][..., None] if own["decay"].ndim else own["decay"]))
    lines.append(f"k = {row_text(own['k'])}")
    if rule.corrects:
        lines.append(f"held at k = Sᵀk = {row_text(own['held'])}")
        lines.append(f"error = v − held = {row_text(own['v'])} − {row_text(own['held'])} = {row_text(own['error'])}")
    else:
        lines.append(f"v = {row_text(own['v'])}")
    if "beta" in own:
        lines.append(f"β = {record.tensor('beta').formula} = {number(own['beta'])}")
    lines.append(f"written = {record.tensor('written').formula} = {row_text(own['written'])}")
    lines += ["state after = state + k writtenᵀ", *state_lines(states[token])]
    lines += [f"q = {row_text(own['q'])}", f"read = {record.tensor('read').formula} = {row_text(own['read'])}"]
    wide = {"q": "key_dim", "k": "key_dim"} | dict.fromkeys(("v", "held", "error", "written", "read"), "value_dim")
    tensors = {
        name: Tensor(one, (wide.get(name, "key_dim"),)[: one.ndim], formula=record.tensor(name).formula)
        for name, one in own.items()
    }
    tensors["before"] = Tensor(old, ("key_dim", "value_dim"), formula="S before the token")
    tensors["after"] = Tensor(states[token], ("key_dim", "value_dim"), formula="S after the token")
    return Explanation(tensors, text="\n".join(lines))


def state_lines(state: Array) -> list[str]:
    """A state, one line for each key."""
    more = [f"  … {len(state) - MOST_ROWS} more rows"] if len(state) > MOST_ROWS else []
    return [*(f"  {row_text(row)}" for row in state[:MOST_ROWS]), *more]


def number(gate: Array) -> str:
    """A gate: a number, or one for each row of the state."""
    return row_text(gate) if gate.ndim else plain(float(gate))
