"""Which expressions hold a model that Accelerate prepared, by a program's own call or by transformers' Trainer."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from fsdp_migrate.facts.file import File, is_name, last_name, values_given
from fsdp_migrate.facts.models import Models
from fsdp_migrate.facts.nodes import any_below, any_is, name_around, receiver
from fsdp_migrate.facts.origins import of_assigned, reaching
from fsdp_migrate.facts.program import Definition, External, Program, is_module
from fsdp_migrate.facts.scopes import Assigned, Parameter
from fsdp_migrate.search import Search
from fsdp_migrate.source import is_test

_USES = Search(r"\bAccelerator\b|accelerator\.|Trainer\)\s*:|\btransformers\.Trainer\b|\bTrainer\(")
# Methods of an accelerator that are given a model which it has prepared.
_TAKING = ("accumulate", "clip_grad_norm_", "get_state_dict", "no_sync", "unwrap_model")
# These give the model itself, which Accelerate shards in place.
_UNWRAPPING = ("extract_model_from_parallel", "unwrap_model")
_TRAINING = ("compute_loss", "training_step", "prediction_step")
# An argument of `prepare` by its name, where the program does not show what it is.
_OPTIMIZER = re.compile(r"optim|(^|_)opt($|_|s$)")
_OTHER = re.compile(r"sched|loader|data|iter|token|process|sampler|collat|batch|samples|state")
_MODEL = re.compile(
    r"(^|_)ref|model|policy|critic|actor|net($|_)|unet|vae|coder|module|former|head|generator|discriminator"
)


class Prepared(Models):
    """The models that Accelerate shards: results of `prepare`, what its methods are given, and the model of a Trainer."""

    def shards(self, file: File | None = None) -> bool:
        """Whether a file belongs to a program that trains such models, or mentions FSDP: an import may lead to it unseen."""
        if file is None:
            return bool(self._sharding)
        return str(file.path) in self._sharding or "fsdp" in file.text.lower()

    @cached_property
    def _sharding(self) -> set[str]:
        reach = self.program.reach
        found = set[str]()
        for file in self.program.files:
            if str(file.path) not in found and _USES(file.text):
                found.update([each for each in reach.of(file.path) if not is_test(each)])
                found.add(str(file.path))
        return found

    def _constructors(self, file: File) -> list[ast.Call]:
        """None: which arguments FSDP1 has here, no call in Python says."""
        return []

    def is_constructor(self, call: ast.Call, file: File) -> bool:
        """Whether a call prepares one model and nothing else."""
        return self.takes(call, file, "prepare_model") or (
            self.is_prepare(call, file) and len(call.args) == 1 and self._is_a_model(call, 0, file)
        )

    def is_prepare(self, call: ast.Call, file: File) -> bool:
        """Whether a call is of an accelerator's `prepare`."""
        return self.takes(call, file, "prepare")

    def kind(self, argument: ast.expr, file: File) -> str:
        """What an argument of `prepare` is: a model, an optimizer, other, or "" if that is not known."""
        values = [argument]
        if isinstance(argument, ast.Name):
            own = [b for b in file.bindings(argument) if isinstance(b, Assigned)]
            made = [of_assigned(each, file).value for each in reaching(file, own, argument)]
            values += [value for value in made if isinstance(value, ast.Call)]
        for value in reversed(values):
            if isinstance(value, ast.Call) and (found := self._kind_of_call(value, file)):
                return found
        named = argument
        if isinstance(argument, ast.Call):
            named = argument.func
        name = last_name(named).lower()
        for kind, pattern in (("optimizer", _OPTIMIZER), ("other", _OTHER), ("model", _MODEL)):
            if pattern.search(name):
                return kind
        return ""

    def _kind_of_call(self, call: ast.Call, file: File) -> str:
        name = last_name(call.func)
        paths = self.program.dotted(call.func, file)
        if any_below(paths, "torch.optim."):
            if "lr_scheduler" in "".join(paths):
                return "other"
            return "optimizer"
        if any_below(paths, "torch.nn."):
            return "model"
        made = self.program.definition(call.func, file)
        is_class = made is not None and isinstance(made.node, ast.ClassDef)
        if made is not None and is_class and is_module(self.program, made):
            return "model"
        if name == "DataLoader":
            return "other"
        return ""

    def takes(self, call: ast.Call, file: File, *methods: str) -> bool:
        """Whether a call is of one of an accelerator's methods."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in methods:
            return False
        owner = function.value
        # `Accelerator().prepare(model)`
        made = owner
        if isinstance(owner, ast.Call):
            made = owner.func
        if last_name(made).lower().endswith("accelerator"):
            return True
        found = file.variable(owner)
        return found is not None and any(
            isinstance(each.value, ast.Call) and last_name(each.value.func).endswith("Accelerator")
            for each in found.assigned
        )

    def _is_a_model(self, call: ast.Call, place: int, file: File) -> bool:
        return place < len(call.args) and self.kind(call.args[place], file) == "model"

    def _made_by(self, call: ast.Call, file: File, path: tuple[int, ...] = ()) -> bool | None:
        if path and self.is_prepare(call, file):
            return self._is_a_model(call, path[0], file)
        if last_name(call.func) in _UNWRAPPING and call.args:
            return self.sharded(call.args[0], file)
        return super()._made_by(call, file, path)

    def _named(self, name: ast.Name, file: File) -> bool | None:
        function = file.function(name)
        given = {
            ast.unparse(each) for each in self._given_to(file) if file.function(each) is function
        }
        is_parameter = any_is(file.bindings(name), Parameter)
        if is_parameter and function is not None and name.id == "model":
            if function.name in _TRAINING and self._is_trainer(file.enclosing_class(name), file):
                return True
        is_given = is_parameter and name.id in given
        return is_given or self._is_trained(name, file) or super()._named(name, file)

    def _is_trained(self, name: ast.Name, file: File) -> bool:
        """Whether a Trainer that was given a model has trained it above: `Trainer(model=model).train()`."""
        for call in file.calls.get("train", ()):
            trainer = receiver(call)
            if trainer is None or call.lineno >= name.lineno:
                continue
            if file.function(call) is not file.function(name):
                continue
            made = file.variable(trainer)
            if made is None or not self._is_trainers(trainer, file):
                continue
            for each in made.assigned:
                if isinstance(each.value, ast.Call):
                    if any(is_name(value, name.id) for value in values_given(each.value)):
                        return True
        return False

    def _kept(self, attribute: ast.Attribute, file: File) -> bool | None:
        own = is_name(attribute.value, "self")
        if own and name_around(file, attribute) == "__init__":
            return super()._kept(attribute, file)  # maybe not prepared yet
        if attribute.attr in ("model", "model_wrapped"):
            if own:
                is_trainers = self._is_trainer(file.enclosing_class(attribute), file)
            else:
                is_trainers = self._is_trainers(attribute.value, file)
            if is_trainers:
                return True
        is_given = own and "accelerator" in file.text and attribute.attr in self._attributes
        return is_given or super()._kept(attribute, file)

    def _given_to(self, file: File) -> Iterator[ast.expr]:
        """The models that a file gives to methods of an accelerator which take prepared ones."""
        for name in _TAKING:
            for call in file.calls.get(name, ()):
                if call.args and self.takes(call, file, name):
                    given = call.args[0]
                    given = receiver(given) or given  # of model.parameters()
                    if self.kind(given, file) not in ("optimizer", "other"):
                        yield given

    @cached_property
    def _attributes(self) -> set[str]:
        """The attributes of `self` that are given to an accelerator as prepared models."""
        names = set[str]()
        for file in self.program.files:
            for given in self._given_to(file):
                match given:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name):
                        names.add(name)
        return names

    def _is_trainer(self, cls: ast.ClassDef | None, file: File) -> bool:
        """Whether a class extends a Trainer of transformers."""
        if cls is None:
            return False
        above = self.program.classes_above(Definition(file, cls))
        return any(isinstance(each, External) and _is_of_trainer(each.dotted) for each in above)

    def _is_trainers(self, owner: ast.expr, file: File) -> bool:
        """Whether an expression is a Trainer of transformers, by what makes it, or by its annotation."""
        found = file.variable(owner)
        if found:
            makers = [each.value for each in found.assigned]
        else:
            makers = []
        classes = [each.func for each in makers if isinstance(each, ast.Call)]
        annotated = [
            b.argument.annotation for b in file.bindings(owner) if isinstance(b, Parameter)
        ]
        classes += [each for each in annotated if isinstance(each, ast.expr)]
        for cls in classes:
            if any(map(_is_of_trainer, self.program.dotted(cls, file))):
                return True
            made = self.program.definition(cls, file)
            if made is not None and isinstance(made.node, ast.ClassDef):
                if self._is_trainer(made.node, made.file):
                    return True
        return False


def prepared_of(program: Program) -> Prepared:
    """The models of a program that Accelerate prepares."""
    return program.once(Prepared)


def _is_of_trainer(dotted: str) -> bool:
    return dotted.startswith(("transformers.", "trl.")) and dotted.endswith("Trainer")
