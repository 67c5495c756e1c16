"""Methods that aggregate predictions: the paper's, which are one rule, trust, and defences."""

from trustmix.aggregation.robust import Cronus, ExpGuard, GeometricMedian, Median
from trustmix.aggregation.trust import Trust
from trustmix.density import RATIO
from trustmix.federation.client import Client
from trustmix.federation.method import CLIENTS, METHODS, Method, weighted_average

CLIENTS.register("distillation")(Client)

METHODS.register("avg")(weighted_average("avg", "AVG", 0.0, colour=2))
METHODS.register("uwa")(weighted_average("uwa", "UWA", 1.0, colour=3))
METHODS.register("suwa")(weighted_average("suwa", "sUWA", 0.25, colour=4))
METHODS.register("most-confident")(weighted_average("most-confident", "most confident", float("inf")))
METHODS.register("trust")(Method("trust", "Trust", Trust, density=RATIO, colour=5))
METHODS.register("median")(Method("median", "median", Median, guardable=False))
METHODS.register("geometric-median")(Method("geometric-median", "geometric median", GeometricMedian, guardable=False))
METHODS.register("cronus")(Method("cronus", "Cronus", Cronus, guardable=False))
METHODS.register("expguard")(Method("expguard", "ExpGuard", ExpGuard, guardable=False))
