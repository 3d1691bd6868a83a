"""Mistakes that a CPU never notices and an accelerator does, each planted in a
function and tried on the stand-in.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mistake:
    """Text of a function that is wrong, and the work of
    tests/models/accelerator_laws.py that meets it.
    """

    work: str
    where: str  # module:function, or module:Class.method
    right: str
    wrong: str = ""


FIT, INFERENCE, NETWORK = "dtml.training", "dtml.inference", "dtml.network"
BEAMS = "translation.decoding.beam_search"
MISTAKES = (
    Mistake("train", f"{FIT}:Span.of", "windows.rows.to(device)", "windows.rows"),
    Mistake("train", f"{FIT}:Span.batch", "= days.to(device)", "= days"),
    Mistake("train", f"{FIT}:_step", "torch.zeros_like(fit.penalty)", "torch.zeros(())"),
    Mistake("train", f"{FIT}:Fit.start", "torch.Generator(device)", "torch.Generator()"),
    Mistake("train_some", f"{FIT}:_step", "is_counted.any(dim=1).cpu()", "is_counted.any(dim=1)"),
    Mistake("across", f"{FIT}:state_file", "-{device.type}"),
    Mistake("resume", f"{FIT}:Fit.restore", 'tensors["random"]', 'tensors["order"]'),
    Mistake("predict", f"{INFERENCE}:member_probabilities", ".sigmoid().cpu()", ".sigmoid()"),
    Mistake("look", f"{INFERENCE}:attention", "weights.mean(dim=1).cpu()", "weights.mean(dim=1)"),
    Mistake(
        "train",
        "dtml.model:temporal_attention",
        ".softmax(dim=0)",
        ".softmax(dim=0).detach().numpy()",
    ),
    Mistake(
        "stocknet",
        f"{NETWORK}:Dropout.forward",
        "torch.empty_like(x, memory_format=torch.contiguous_format)",
        "torch.empty(x.shape)",
    ),
    Mistake(
        "train_translator",
        "translation.training.step:batch_loss",
        "batch.source.to(device)",
        "batch.source",
    ),
    Mistake("train_translator", "translation.transformer:sinusoids", ", device=positions.device"),
    Mistake("translate", f"{BEAMS}:_begin", "-math.inf, device=device", "-math.inf"),
    Mistake("translate", f"{BEAMS}:best_tokens", ", device=scores.device"),
    Mistake(
        "translate_rnn", "translation.seq2seq:RecurrentState.reorder", ", device=origin.device"
    ),
)
