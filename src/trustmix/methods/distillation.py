"""Methods that aggregate predictions: the paper's, which are one rule, those for shared label sets, and defences."""

from trustmix.aggregation.coupling import Coupling
from trustmix.aggregation.holders import Holders
from trustmix.aggregation.robust import Cronus, ExpGuard, GeometricMedian, Median
from trustmix.aggregation.trust import Trust
from trustmix.federation.client import Client
from trustmix.federation.method import CLIENTS, METHODS, Method, weighted_average

CLIENTS.register("distillation")(Client)

METHODS.register("avg")(weighted_average("avg", "AVG", 0.0, colour=2))
METHODS.register("uwa")(weighted_average("uwa", "UWA", 1.0, colour=3))
METHODS.register("suwa")(weighted_average("suwa", "sUWA", 0.25, colour=4))
METHODS.register("most-confident")(weighted_average("most-confident", "most confident", float("inf")))
METHODS.register("trust")(Method("trust", "Trust", Trust, needs_label_sets=True, colour=5))
METHODS.register("coupling")(Method("coupling", "Coupling", Coupling, needs_label_sets=True, colour=6))
METHODS.register("holders")(Method("holders", "holders", Holders, needs_label_sets=True, colour=7))
METHODS.register("median")(Method("median", "median", Median, guardable=False))
METHODS.register("geometric-median")(Method("geometric-median", "geometric median", GeometricMedian, guardable=False))
METHODS.register("cronus")(Method("cronus", "Cronus", Cronus, guardable=False))
METHODS.register("expguard")(Method("expguard", "ExpGuard", ExpGuard, guardable=False))
