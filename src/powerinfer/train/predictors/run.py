"""Trains the predictors of a whole model: collects, trains layer by layer, measures."""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import islice

import torch

from powerinfer._files import format_bytes
from powerinfer._replacing import remove_abandoned
from powerinfer.calibration.text import WINDOW
from powerinfer.errors import PowerInferError, PromptError, UnsupportedError
from powerinfer.gguf import model_identity
from powerinfer.loading.loader import LoadedModel
from powerinfer.train.devices import naming_exhaustion
from powerinfer.train.predictors.cache import Cache, LayerShape
from powerinfer.train.predictors.collecting import collect, input_scales
from powerinfer.train.predictors.fitting import FittedLayer, fit_layer
from powerinfer.train.predictors.folder import FolderState, LayerReport, PredictorFolder
from powerinfer.train.predictors.goal import THRESHOLD
from powerinfer.train.predictors.layer_data import LayerData
from powerinfer.train.predictors.measuring import OutputError, attach_predictors, measure_predictors
from powerinfer.train.predictors.plan import (
    TrainingPlan,
    check_memory,
    check_model,
    count_parameters,
    parameter_limit,
)
from powerinfer.train.predictors.ranks import rank_limits
from powerinfer.train.predictors.reads import LayerReads
from powerinfer.train.predictors.sizes import PredictorSizes
from powerinfer.train.predictors.survey import Survey, load_survey, make_survey, save_survey
from powerinfer.train.stored_windows import StoredWindows, open_windows, store_windows
from powerinfer.train.token_windows import TokenWindows, text_identity
from powerinfer.values import IntArray

__all__ = ["Progress", "TrainedPredictors", "train_predictors"]

Progress = Callable[[int, int, str], None]
"""Called with (done, in all, what is going on)."""

_LEAST_TOKENS = 4096
# One window in this many is held out.
_HELD_OUT = 10
# State of a layer's training, per parameter of its predictor, while its file is replaced.
_STATE_BYTES = 40
_MEMORY_REMEDY = (
    "free memory and go on with the same command, on another {device} if need be, or start again "
    "with a smaller {max_share}"
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainedPredictors:
    """The result of a training.

    Attributes:
        layers: measured on held-out text with all predictors attached.
        numbers: the layers' in the model, which may have others without an FFN to predict.
        share: parameters of all predictors as a share of the model's.
        seconds: of this run; an earlier one that was stopped does not count.
    """

    layers: tuple[LayerReport, ...]
    numbers: tuple[int, ...]
    report: dict[str, object] = field(repr=False)
    share: float
    seconds: float


def train_predictors(
    loaded: LoadedModel, plan: TrainingPlan, progress: Progress
) -> TrainedPredictors:
    """Train and measure the predictors of all layers, or resume that.

    The same model, text, goal and seed give the same files, bit for bit, on the same machine with
    as many threads, however often the run was killed. The model is loaded on the CPU, with `exact`
    sparsity.

    Raises:
        UnsupportedError: the model has an activation that is never zero, or layers that are not
            alike; the share is too small for any predictor; disk or memory are.
        PromptError: the text is too short.
        NumericsError: the model or the training makes NaN or infinity.
        PowerInferError: the folder or the cache belongs to another run, or cannot be written.
    """
    started = time.monotonic()
    run = _Run(loaded, plan, progress)
    state = run.folder.read()
    if not state.is_finished:
        state = run.finish(state)
    return TrainedPredictors(
        layers=state.layers,
        numbers=tuple(run.numbers),
        report=run.folder.report(state),
        share=run.count_used(state) / count_parameters(loaded.file),
        seconds=time.monotonic() - started,
    )


class _Run:
    """One run; its results are in its folder and its cache."""

    def __init__(self, loaded: LoadedModel, plan: TrainingPlan, progress: Progress) -> None:
        self._loaded = loaded
        self._model = loaded.model
        self._plan = plan
        self._progress = progress
        config = self._model.config
        check_model(config)
        self.numbers = config.counted_layers
        self._sizes = PredictorSizes.of(config, self._model.architecture)
        num_parameters = count_parameters(loaded.file)
        self._limit = parameter_limit(plan.goal, self._sizes, len(self.numbers), num_parameters)
        self._rank_cost = self._sizes.rank_parameters
        self._window = min(WINDOW, self._model.context_length)
        data = self._describe_data()
        run = {**data, "goal": asdict(plan.goal), "seed": plan.seed}
        self.folder = PredictorFolder(plan.output, run)
        self._recipe = json.dumps(_without_names(data))

    def _describe_data(self) -> dict[str, dict[str, object]]:
        """Everything that decides the collected data."""
        plan = self._plan
        return {
            "model": {
                "name": self._loaded.path.name,
                "identity": model_identity(self._loaded.file),
                "activation": str(self._model.config.activation),
            },
            "text": {
                "names": [path.name for path in plan.texts],
                "identity": text_identity(plan.texts),
                "window": self._window,
                "max_tokens": plan.num_tokens,
            },
        }

    def count_used(self, state: FolderState) -> int:
        """Parameters of the predictors trained so far."""
        return self._rank_cost * sum(layer.rank for layer in state.layers)

    def finish(self, state: FolderState) -> FolderState:
        """Do the remaining work."""
        cache = Cache(self._plan.cache, self._recipe)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._loaded.threads)
        try:
            remove_abandoned(self._plan.output)
            text = self._open_text(cache)
            state = replace(state, tokens=text.all.size, held_out_tokens=text.held_out.size)
            state = self._train(state, cache, text)
            state = self._measure(state, text)
            self.folder.write_report(state)
            cache.remove()
        except PowerInferError:
            # A run refused at the beginning must not block a better try.
            if not cache.collected()[0]:
                cache.remove()
            raise
        finally:
            torch.set_num_threads(threads)
            cache.close()
        return state

    def _open_text(self, cache: Cache) -> StoredWindows:
        path, window = cache.path("windows.i32"), self._window
        if not path.exists():
            told, most = self._told("reading text"), self._plan.num_tokens
            windows = TokenWindows.of_model(self._plan.texts, self._loaded.tokenizer, window)
            chosen = _enough(islice(windows, most // window), window)
            store_windows(path, chosen, lambda count: told(count * window, most))
        return open_windows(path, window, lambda count: max(1, count // _HELD_OUT))

    def _train(self, state: FolderState, cache: Cache, text: StoredWindows) -> FolderState:
        """Train the remaining layers, in groups that fit the cache."""
        num_layers = len(self.numbers)
        if len(state.layers) == num_layers:
            return state
        survey = self._survey(cache, text)
        while (first := len(state.layers)) < num_layers:
            group = self._collect(first, cache, text, survey)
            if not first:
                # Before any predictor: it says whose they are.
                self.folder.write_report(state)
            while len(state.layers) < group.stop:
                state = self._train_layer(state, cache, text, survey)
        return state

    def _survey(self, cache: Cache, text: StoredWindows) -> Survey:
        path = cache.path("survey.npz")
        survey = load_survey(path)
        if survey is None:
            survey = make_survey(self._model, self._loaded.file, text.train)
            save_survey(path, survey)
        return survey

    def _collect(self, first: int, cache: Cache, text: StoredWindows, survey: Survey) -> range:
        """Collect a group of layers from this one on, or resume the group that it is in.

        Layers are places in `numbers`.
        """
        known, done = cache.collected()
        is_whole = done == len(text.all)
        wanted = self.numbers[first : known.stop]
        is_there = first in known and cache.has_layers(wanted, self._shape(text))
        if is_there and (is_whole or first == known.start):
            group = known
        else:
            last = first + self._group_size(text, survey)
            group = range(first, min(last, len(self.numbers)))
            cache.note_collected(range(0), 0)
        chosen = self.numbers[first : group.stop]
        cache.remove_layers_but(chosen)
        if group != known or not (is_whole and is_there):
            told = self._told(f"collecting layers {self.numbers[group.start]} to {chosen[-1]}")
            collect(self._model, text.all, group, cache, input_scales(survey.largest), told)
        return group

    def _group_size(self, text: StoredWindows, survey: Survey) -> int:
        """Layers that fit the cache at once."""
        shape = self._shape(text)
        largest = max(rank_limits(self._limit, self._rank_cost, list(survey.densities)))
        if self._plan.device == "cpu":
            check_memory(self._sizes, largest)
        other = text.all.nbytes + survey.weights.nbytes
        other += _STATE_BYTES * largest * self._rank_cost
        count = (self._plan.cache_bytes - other) // shape.num_bytes
        if count < 1:
            needed = other + shape.num_bytes
            raise UnsupportedError(
                f"collecting a layer for {text.all.size} tokens takes {format_bytes(needed)}, "
                f"and {format_bytes(self._plan.cache_bytes)} are allowed",
                remedy="allow more with {cache_size}, or take fewer tokens with {num_tokens}",
            )
        return int(count)

    def _shape(self, text: StoredWindows) -> LayerShape:
        return LayerShape(text.all.size, self._sizes)

    def _train_layer(
        self, state: FolderState, cache: Cache, text: StoredWindows, survey: Survey
    ) -> FolderState:
        """Train the next layer and store it."""
        place = len(state.layers)
        number = self.numbers[place]
        limit = self._rank_limit(state, survey)
        with naming_exhaustion(f"training layer {number}, of ranks up to {limit}", _MEMORY_REMEDY):
            fitted = fit_layer(
                self._data(place, cache, text, survey),
                self._plan.goal,
                rank_limit=limit,
                device=self._plan.device,
                seed=self._plan.seed,
                checkpoint=cache.path(f"layer_{number}.fit"),
                progress=lambda at: self._progress(
                    at.step,
                    at.num_steps,
                    f"training layer {number}, rank {at.rank}, loss {at.loss:.4f}",
                ),
            )
        if fitted.warning:
            _log.warning("layer %d: %s", number, fitted.warning)
        self._warn_of_reads(number, fitted)
        self.folder.write_layer(number, fitted.fc1, fitted.fc2)
        layer = LayerReport.of(fitted.rank, fitted.figures)
        state = replace(state, layers=(*state.layers, layer))
        self.folder.write_report(state)
        cache.remove_layer(number)
        return state

    def _rank_limit(self, state: FolderState, survey: Survey) -> int:
        """Largest rank of the next layer; inside experts no more than pays."""
        place, left = len(state.layers), self._limit - self.count_used(state)
        densities = list(survey.densities[place:])
        limit = rank_limits(left, self._rank_cost, densities)[0]
        if self._model.config.experts is None:
            return limit
        reads = LayerReads.of(self._model, self.numbers[place])
        return min(limit, reads.largest_rank(densities[0], self._plan.goal))

    def _warn_of_reads(self, number: int, fitted: FittedLayer) -> None:
        """Warn of a predictor inside experts that reads more than it saves."""
        if self._model.config.experts is None:
            return
        reads = LayerReads.of(self._model, number)
        read, saved = reads.read(fitted.rank), reads.saved(fitted.figures.density)
        if read >= saved:
            _log.warning(
                "layer %d: for each token the predictor reads %s and saves %s; exact, or mlp:q4_0 "
                "from a calibration, may read less",
                number,
                format_bytes(int(read)),
                format_bytes(int(saved)),
            )

    def _data(self, place: int, cache: Cache, text: StoredWindows, survey: Survey) -> LayerData:
        number = self.numbers[place]
        inputs, fired, experts = cache.layer(number, self._shape(text))
        return LayerData(
            number=number,
            inputs=inputs,
            fired=fired,
            num_neurons=self._model.config.num_neurons,
            num_train=text.train.size,
            weights=survey.weights[place],
            scale=input_scales(survey.largest)[place],
            ffn_error=OutputError(self._model, text.held_out, number),
            experts=experts,
            num_experts=self._sizes.num_experts,
        )

    def _told(self, what: str) -> Callable[[int, int], None]:
        return lambda done, total: self._progress(done, total, what)

    def _measure(self, state: FolderState, text: StoredWindows) -> FolderState:
        """Run the held-out text with all predictors attached."""
        predictors = {number: self.folder.read_layer(number) for number in self.numbers}
        model = attach_predictors(self._model, predictors, THRESHOLD)
        layers = measure_predictors(model, text.held_out, self._told("measuring"))
        return replace(state, layers=tuple(layers), is_finished=True)


def _enough(windows: Iterable[IntArray], window: int) -> Iterator[IntArray]:
    """The same windows, which must be enough to train on."""
    done = 0
    for ids in windows:
        yield ids
        done += window
    if done < _LEAST_TOKENS:
        raise PromptError(
            f"the text has {done} tokens in whole windows of {window}; training predictors needs "
            f"at least {_LEAST_TOKENS}, and good ones some hundred thousand"
        )


def _without_names(data: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The same data without names: files may be called anything."""
    return {
        part: {key: value for key, value in found.items() if key not in ("name", "names")}
        for part, found in data.items()
    }
