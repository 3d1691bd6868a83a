"""Show what DTML's figures on ACL18 depend on, by changing one thing of its recipe at a time.

The controls have steps of 1 or 8 days, gains shared by all stocks, no index, or no data axis. Each
is trained like the published recipe and scored on the same test span. Nothing is chosen by these
figures. Needs the shared data; seeds and epochs are fewer than a benchmark's: half an hour on 4
cores.
"""

from dataclasses import replace

from benchmarks.stores import published_market
from dtml.published import SETS, PublishedSet, shortened
from flows.commands.benchmark import benchmark_parts
from flows.console import say
from flows.studies.published import PublishedExperiment
from flows.studies.study import run_study
from translation.environment import prepare_torch

SEEDS = (0, 1, 2, 3)
EPOCHS = 60


def controls() -> PublishedSet:
    """Return the published recipe, and variants of it with one thing changed in each."""
    recipe = SETS["acl18"].recipes["dtml"]
    training = recipe.training
    model = recipe.model
    recipes = {
        "dtml": recipe,
        "batch_8": replace(recipe, training=replace(training, batch_days=8)),
        "batch_1": replace(recipe, training=replace(training, batch_days=1)),
        "shared_gains": replace(recipe, model=replace(model, normalisation="shared")),
        "no_index": replace(recipe, model=replace(model, beta=0.0)),
        "no_data_axis": replace(recipe, model=replace(model, data_axis=False)),
    }
    return shortened(replace(SETS["acl18"], recipes=recipes), EPOCHS)


def main() -> None:
    """Print the scoreboard of the controls."""
    prepare_torch()
    with published_market("acl18", prices="acl18", index="GSPC") as context:
        result = run_study(PublishedExperiment(context, controls(), SEEDS))
        for part in benchmark_parts(result):
            say(part)


if __name__ == "__main__":
    main()
