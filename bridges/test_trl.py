"""The TRL bridge against grpo_sg_loss, and against TRL's own trainer. Skipped where TRL is not installed."""
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from grpo_sg import grpo_sg_loss, token_weights

trl = pytest.importorskip("trl")
import datasets  # noqa: E402

from bridges import trl_grpo_sg  # noqa: E402

WORDS = ["<|im_end|>", "[UNK]", "yes", "no", "maybe", "who", "what", "why", "never", "always"]


def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<|im_end|>",
                                                pad_token="<|im_end|>", unk_token="[UNK]")


def trainer(folder, cls, loss_type, beta, accumulation):
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(transformers.Qwen2Config(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.2, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=0, pad_token_id=0)).save_pretrained(folder)
    args = trl.GRPOConfig(
        output_dir=str(folder), max_steps=4, per_device_train_batch_size=8 // accumulation,
        gradient_accumulation_steps=accumulation, generation_batch_size=16, num_generations=4,
        max_completion_length=6, beta=beta, loss_type=loss_type, epsilon_high=0.24, learning_rate=1e-2,
        use_bias_correction_kl=False, use_cpu=True, bf16=False, seed=5, gradient_checkpointing=False,
        save_strategy="no", logging_steps=1, report_to="none", disable_tqdm=True)

    def reward(completions, **_):
        return [3.0 if "yes" in text.split() else -0.5 * len(text.split()) for text in completions]
    questions = datasets.Dataset.from_dict({"prompt": ["who", "what", "why why", "maybe"] * 2})
    return cls(str(folder), reward, args, questions, processing_class=tokenizer())


@pytest.mark.parametrize("loss_type, beta, accumulation", [("dapo", 0.1, 2), ("grpo", 0.0, 1)])
def test_its_loss_is_grpo_sg_loss(loss_type, beta, accumulation, tmp_path):
    seen = []

    class Watched(trl_grpo_sg.GRPOSGTrainer):
        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            seen.append((loss.item(), *self.by_hand(model, inputs)))
            return loss

        def by_hand(self, model, inputs):
            """The same loss by grpo_sg_loss, from each row alone, without pads."""
            mask, ids = inputs["completion_mask"].bool(), inputs["completion_ids"]
            rows = []
            for prompt, there, row in zip(inputs["prompt_ids"], inputs["prompt_mask"].bool(), ids):
                whole = torch.cat([prompt[there], row])[None]
                logps = model(input_ids=whole).logits[0, -len(row) - 1:-1].log_softmax(-1)
                rows.append(logps.gather(1, row[:, None])[:, 0])
            logps, old = torch.stack(rows), inputs.get("old_per_token_logps")
            token_mean = loss_type == "dapo"
            loss, stats = grpo_sg_loss(
                logps, logps.detach() if old is None else old, inputs["advantages"], mask,
                weights=token_weights(logps), ref_logps=inputs.get("ref_per_token_logps"), clip_high=0.24,
                beta=beta, loss_agg_mode="token-mean" if token_mean else "seq-mean-token-mean",
                denominator=inputs["num_items_in_batch"] / 2 if token_mean else 8)
            w = token_weights(logps)[mask]
            return loss.item(), w.mean().item()
    watched = trainer(tmp_path, Watched, loss_type, beta, accumulation)
    watched.train()
    assert len(seen) == 4 * accumulation
    for theirs, ours, _ in seen:
        assert theirs == pytest.approx(ours, abs=1e-6)
    first = watched.state.log_history[0]
    assert first["weight_mean"] == pytest.approx(sum(row[2] for row in seen[:accumulation]) / accumulation, abs=1e-6)
    assert 0 < first["low_prob_frac"] <= 1


def test_with_weights_of_1_it_is_trls_trainer(tmp_path, monkeypatch):
    monkeypatch.setattr(trl_grpo_sg, "token_weights", torch.ones_like)
    weights = []
    for cls in (trl.GRPOTrainer, trl_grpo_sg.GRPOSGTrainer):
        run = trainer(tmp_path, cls, "dapo", 0.1, 2)
        before = torch.cat([p.detach().flatten().clone() for p in run.model.parameters()])
        run.train()
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
        assert not torch.equal(before, weights[-1])
    assert torch.equal(*weights)
