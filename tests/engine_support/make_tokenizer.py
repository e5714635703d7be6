"""Writes a tokenizer of 2048 whole words, one for each token of the checkpoint of make_checkpoint.py.

    ENGINE_PYTHON make_tokenizer.py FOLDER

SGLang's own benchmark needs a tokenizer, also for prompts that it draws as token ids.
"""

from __future__ import annotations

import sys

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

WORDS = {f"w{i}": i for i in range(2048)}

words = Tokenizer(WordLevel(WORDS, unk_token="w2"))
words.pre_tokenizer = WhitespaceSplit()
PreTrainedTokenizerFast(
    tokenizer_object=words, unk_token="w2", pad_token="w2", bos_token="w0", eos_token="w1"
).save_pretrained(sys.argv[1])
