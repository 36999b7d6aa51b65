"""Hugging Face's Trainer: ``torch_compile_backend="litz"``."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from litz.tools.accelerate import allow

allow()
small = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
model = BertForSequenceClassification(BertConfig(vocab_size=100, **small))
rows = [{"input_ids": torch.randint(100, (16,)), "labels": k % 2} for k in range(32)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=2, torch_compile_backend="litz", report_to=[], use_cpu=True,
        disable_tqdm=True,
    )  # fmt: skip
    result = Trainer(model, arguments, train_dataset=rows).train()
assert result.training_loss < 1, result
