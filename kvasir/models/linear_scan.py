"""Linear scans as a layer records them: Mamba-2 (Dao & Gu 2024), the gated delta net (Yang et al.
2024), and Kimi Delta Attention (Kimi Team 2025)."""

from __future__ import annotations

from kvasir.ir.builder import Builder
from kvasir.ir.program import Attr, state_spec
from kvasir.models.parts import record_head_norm, record_linear, record_linears, record_scale
from kvasir.models.spec import ModelConfig, ScanSpec

DELTA_EPS = 1e-6
"""Of the lengths of queries and keys, in every family that has them."""
_GATES = {"ssd": "silu", "delta": "silu", "kda": "sigmoid"}


def linear_scan(builder: Builder, config: ModelConfig, layer: int, spec: ScanSpec, x: str) -> str:
    """Projections, convolution, scan, gated norm, projection."""
    scan = _Scan(builder, config, layer, spec)
    y = scan.recurrence(scan.convolution(scan.rows(x)), x)
    rows = record_scale(builder, x, config.multipliers.scan_gate, f"l{layer}.scan_gate.rows")
    gate, act = scan.from_rows(rows, "scan_gate", spec.inner), _GATES[spec.rule]
    gate = builder.op("act", (gate,), f"{gate}.{act}", act=act)
    gated = scan.norm_and_gate if spec.rule == "ssd" else scan.gated_norm
    return scan.linear(gated(y, gate), "scan_out", config.hidden_size)


class _Scan:
    def __init__(self, builder: Builder, config: ModelConfig, layer: int, spec: ScanSpec) -> None:
        self.builder, self.config, self.spec = builder, config, spec
        self.weights, self.values = f"layers.{layer}.", f"l{layer}."
        self.kept = config.kept_at(layer) + config.layers[layer].attends

    def linear(self, x: str, name: str, n: int) -> str:
        return record_linear(self.builder, x, self.weights + name, self.values + name, n)

    def rows(self, x: str) -> str:
        """What the convolution reads."""
        spec, out = self.spec, self.values + "scan_in"
        if not spec.apart:
            return self.linear(x, "scan_in", spec.columns)
        sizes = {"q": spec.vectors, "k": spec.vectors, "v": spec.inner}
        each = {f"{self.weights}scan_{name}": n for name, n in sizes.items()}
        return record_linears(self.builder, x, each, out)

    def from_rows(self, x: str, name: str, n: int) -> str:
        """A linear of the rows, or of the few columns that another one makes of them."""
        rank = self.spec.low_rank
        return self.linear(self.linear(x, f"{name}_in", rank) if rank else x, name, n)

    def weight(self, name: str, *shape: int) -> str:
        return self.builder.weight(self.weights + name, shape)

    def convolution(self, x: str) -> str:
        spec, layer = self.spec, self.kept
        self.builder.kv(state_spec(layer, spec.state_sizes[0]))
        weights = [self.weight("conv", spec.n_taps, spec.columns)]
        if spec.conv_bias:
            weights.append(self.weight("conv_bias", spec.columns))
        attrs: dict[str, Attr] = {"layer": layer, "n_taps": spec.n_taps, "gated": False}
        return self.builder.op("short_conv", (x,), self.values + "conv", tuple(weights), **attrs)

    def recurrence(self, rows: str, x: str) -> str:
        spec, layer, n = self.spec, self.kept + 1, self.spec.n_heads
        self.builder.kv(state_spec(layer, spec.state_sizes[1]))
        is_ssd = spec.rule == "ssd"
        steps = [self.from_rows(x, "scan_step", spec.steps)]
        steps += [] if is_ssd else [self.linear(x, "scan_share", n)]
        out, factor = f"{steps[0]}.scaled", self.config.multipliers.scan_step
        steps[0] = record_scale(self.builder, steps[0], factor, out)
        names = ("step_bias", "scan_rate", "scan_skip")[: 2 + is_ssd]
        return self.builder.op(
            "linear_scan",
            (rows, *steps),
            self.values + "scan",
            tuple(self.weight(x, spec.steps if x == "step_bias" else n) for x in names),
            layer=layer,
            rule=spec.rule,
            n_heads=n,
            head_dim=spec.head_dim,
            n_groups=spec.n_groups,
            state_dim=spec.state_dim,
            tiled=spec.tiled,
            least=spec.least,
            most=spec.most,
            eps=0.0 if is_ssd else DELTA_EPS,
        )

    def norm_and_gate(self, y: str, gate: str) -> str:
        """A norm of groups on either side of the gate, or none."""
        y = self.group_norm(y) if self.spec.norm == "plain" else y
        y = self.gated(y, gate)
        return self.group_norm(y) if self.spec.norm == "gated" else y

    def group_norm(self, y: str) -> str:
        """Each group is normed by itself."""
        n, weight = self.spec.n_groups, (self.weight("scan_norm", self.spec.inner),)
        if n == 1:
            return self.head_norm(y, 1, weight)
        return self.builder.op(
            "weigh", (self.head_norm(y, n, ()),), self.values + "scan.weighed", weight
        )

    def gated_norm(self, y: str, gate: str) -> str:
        """Each head is normed by itself."""
        weight = self.weight("scan_norm", self.spec.head_dim)
        return self.gated(self.head_norm(y, self.spec.n_heads, (weight,)), gate)

    def gated(self, y: str, gate: str) -> str:
        return self.builder.op("mul_columns", (y, gate), self.values + "scan.gated", column=0)

    def head_norm(self, y: str, n: int, weights: tuple[str, ...]) -> str:
        out, eps = self.values + "scan.norm", self.config.norm_eps
        return record_head_norm(self.builder, y, out, n, eps, weights)
