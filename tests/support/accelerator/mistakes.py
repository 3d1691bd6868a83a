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


FIT, STATE, INFERENCE = "dtml.training.fit", "dtml.training.state", "dtml.inference"
MODEL, RANDOM, BEAMS = "dtml.model", "dtml.layers.random", "translation.decoding.beam_search"
PLAIN = "memory_format=torch.contiguous_format"
TRANSFORMER = "translation.transformer"
MISTAKES = (
    Mistake("train", f"{FIT}:Span.of", "tensor.to(device)", "tensor"),
    Mistake("train", f"{FIT}:Span.batch", "= days.to(device)", "= days"),
    Mistake("train", f"{FIT}:Span.batch", "self.rows[sessions.to(device)]", "self.rows[sessions]"),
    Mistake("train", f"{FIT}:Span.batch", "positions.to(device)", "positions"),
    Mistake("train", f"{FIT}:_step", "days.to(train.counted.device)", "days"),
    Mistake("train", f"{FIT}:_step", "torch.zeros_like(fit.penalty)", "torch.zeros(())"),
    Mistake("train_some", f"{FIT}:_step", ".values.to(is_counted.device)", ".values"),
    Mistake("train_some", f"{FIT}:_step", "is_counted.any(dim=1).cpu()", "is_counted.any(dim=1)"),
    Mistake(
        "train",
        f"{FIT}:_epoch",
        "generator=fit.order",
        "generator=fit.order, device=train.rows.device",
    ),
    Mistake(
        "train",
        f"{FIT}:_validate",
        "loss = torch.zeros((), device=span.rows.device)",
        "loss = torch.zeros(())",
    ),
    Mistake("train", f"{STATE}:start", "torch.Generator(device)", "torch.Generator()"),
    Mistake(
        "train",
        f"{STATE}:start",
        "use_generator(network.to(device), random)",
        "use_generator(network, random)",
    ),
    Mistake("train", f"{STATE}:start", "penalty, device=device", "penalty"),
    Mistake(
        "train", f"{STATE}:start", "network.to(device), random", "network.to(device), shuffling"
    ),
    Mistake("across", f"{STATE}:StateFolder.file", "-{device.type}"),
    Mistake(
        "resume",
        f"{STATE}:StateFolder.restore",
        'fit.order.set_state(tensors["order"])',
        'fit.order.set_state(tensors["random"])',
    ),
    Mistake("resume", f"{STATE}:StateFolder.restore", 'tensors["random"]', 'tensors["order"]'),
    Mistake("predict", f"{INFERENCE}:_fill_probabilities", ".sigmoid().cpu()", ".sigmoid()"),
    Mistake(
        "predict", f"{INFERENCE}:_fill_probabilities", ".sigmoid().cpu()", ".sigmoid().numpy()"
    ),
    Mistake("predict", f"{INFERENCE}:_inputs", "span.rows().to(device)", "span.rows()"),
    Mistake("predict", f"{INFERENCE}:_inputs", "positions.to(device)", "positions"),
    Mistake(
        "predict",
        f"{INFERENCE}:_inputs",
        "windows.observed[days].to(device)",
        "windows.observed[days]",
    ),
    Mistake("predict", f"{INFERENCE}:_model", "model.to(device)", "model"),
    Mistake(
        "look", f"{INFERENCE}:_member_attention", "weights.mean(dim=1).cpu()", "weights.mean(dim=1)"
    ),
    Mistake("train", f"{MODEL}:LSTM.forward", "rows.new_zeros(", "torch.zeros("),
    Mistake(
        "train",
        f"{MODEL}:LSTM._weights_of_torch",
        "torch.zeros_like(bias)",
        "torch.zeros(len(bias))",
    ),
    Mistake(
        "train",
        f"{MODEL}:ContextNormalisation.forward",
        "self.gain *",
        "torch.ones(contexts.shape[-1]) *",
    ),
    Mistake(
        "train",
        f"{MODEL}:temporal_attention",
        ".softmax(dim=0)",
        ".softmax(dim=0).detach().numpy()",
    ),
    Mistake("train", f"{MODEL}:temporal_attention", "states[-1]", "states[torch.tensor([-1])][0]"),
    Mistake(
        "stocknet",
        f"{RANDOM}:Dropout.forward",
        "torch.empty_like(x, memory_format=torch.contiguous_format)",
        "torch.empty(x.shape)",
    ),
    Mistake(
        "stocknet",
        f"{RANDOM}:Gaussian.forward",
        "torch.zeros_like(like, memory_format=torch.contiguous_format)",
        "torch.zeros(like.shape)",
    ),
    Mistake(
        "train",
        "dtml.layers.network:cross_entropy",
        "rises.to(logits.dtype)",
        "rises.cpu().to(logits.dtype)",
    ),
    Mistake(
        "train_translator",
        "translation.training.step:batch_loss",
        "batch.source.to(device)",
        "batch.source",
    ),
    Mistake(
        "train_translator",
        "translation.transformer:Transformer.forward",
        "length, dtype=torch.bool, device=target.device",
        "length, dtype=torch.bool",
    ),
    Mistake("train_translator", f"{TRANSFORMER}:sinusoids", ", device=positions.device"),
    Mistake(
        "translate", f"{BEAMS}:_begin", "torch.tensor(rows, device=device)", "torch.tensor(rows)"
    ),
    Mistake("translate", f"{BEAMS}:_begin", "PAD, device=device", "PAD"),
    Mistake("translate", f"{BEAMS}:_begin", "-math.inf, device=device", "-math.inf"),
    Mistake("translate", f"{BEAMS}:best_tokens", ", device=scores.device"),
    Mistake(
        "translate",
        f"{BEAMS}:_Beams._finish",
        "[sentence.limit for sentence in self.sentences],\n        device=end_scores.device,\n",
        "[sentence.limit for sentence in self.sentences],\n",
    ),
    Mistake(
        "translate",
        "translation.decoding.incremental:IncrementalTransformer.start",
        ", device=source.device",
    ),
    Mistake(
        "translate_rnn", "translation.seq2seq:RecurrentState.reorder", ", device=origin.device"
    ),
)
