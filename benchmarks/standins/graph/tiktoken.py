"""Stands in for tiktoken: a letter is a token."""

from types import SimpleNamespace


def get_encoding(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        n_vocab=128, encode=lambda text: [3 + ord(letter) % 125 for letter in text]
    )
