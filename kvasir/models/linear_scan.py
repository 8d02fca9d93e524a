"""Linear scans as a layer records them: Mamba-2 (Dao & Gu 2024), the gated delta net (Yang et al.
2024), and Kimi Delta Attention (Kimi Team 2025)."""

from __future__ import annotations

from kvasir.ir.program import Attr, state_spec
from kvasir.models.parts import LayerRecorder, record_head_norm, record_scale
from kvasir.models.spec import ScanSpec

DELTA_EPS = 1e-6
"""Of the lengths of queries and keys, in every family that has them."""
_GATES = {"ssd": "silu", "delta": "silu", "kda": "sigmoid"}


def linear_scan(layer: LayerRecorder, spec: ScanSpec, x: str) -> str:
    """Projections, convolution, scan, gated norm, projection."""
    scan, config = _Scan(layer, spec), layer.config
    y = scan.recurrence(scan.convolution(scan.rows(x)), x)
    rows = layer.scaled(x, config.multipliers.scan_gate, "scan_gate.rows")
    gate, act = scan.from_rows(rows, "scan_gate", spec.inner), _GATES[spec.rule]
    gate = layer.builder.op("act", (gate,), f"{gate}.{act}", act=act)
    gated = scan.norm_and_gate if spec.rule == "ssd" else scan.gated_norm
    return layer.linear(gated(y, gate), "scan_out", config.hidden_size)


class _Scan:
    def __init__(self, layer: LayerRecorder, spec: ScanSpec) -> None:
        self.layer, self.builder, self.config, self.spec = layer, layer.builder, layer.config, spec
        at = layer.layer
        self.kept = self.config.kept_at(at) + self.config.layers[at].attends

    def rows(self, x: str) -> str:
        """What the convolution reads."""
        spec = self.spec
        if not spec.apart:
            return self.layer.linear(x, "scan_in", spec.columns)
        sizes = {"scan_q": spec.vectors, "scan_k": spec.vectors, "scan_v": spec.inner}
        return self.layer.linears(x, sizes, "scan_in")

    def from_rows(self, x: str, name: str, n: int) -> str:
        """A linear of the rows, or of the few columns that another one makes of them."""
        rank = self.spec.low_rank
        return self.layer.linear(self.layer.linear(x, f"{name}_in", rank) if rank else x, name, n)

    def convolution(self, x: str) -> str:
        spec, layer = self.spec, self.kept
        self.builder.kv(state_spec(layer, spec.state_sizes[0]))
        weights = [self.layer.weight("conv", (spec.n_taps, spec.columns))]
        if spec.conv_bias:
            weights.append(self.layer.weight("conv_bias", (spec.columns,)))
        attrs: dict[str, Attr] = {"layer": layer, "n_taps": spec.n_taps, "gated": False}
        return self.builder.op(
            "short_conv", (x,), self.layer.value("conv"), tuple(weights), **attrs
        )

    def recurrence(self, rows: str, x: str) -> str:
        spec, layer, n = self.spec, self.kept + 1, self.spec.n_heads
        self.builder.kv(state_spec(layer, spec.state_sizes[1]))
        is_ssd = spec.rule == "ssd"
        steps = [self.from_rows(x, "scan_step", spec.steps)]
        steps += [] if is_ssd else [self.layer.linear(x, "scan_share", n)]
        out, factor = f"{steps[0]}.scaled", self.config.multipliers.scan_step
        steps[0] = record_scale(self.builder, steps[0], factor, out)
        names = ("step_bias", "scan_rate", "scan_skip")[: 2 + is_ssd]
        return self.builder.op(
            "linear_scan",
            (rows, *steps),
            self.layer.value("scan"),
            tuple(self.layer.weight(x, (spec.steps if x == "step_bias" else n,)) for x in names),
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
        n, weight = self.spec.n_groups, (self.layer.weight("scan_norm", (self.spec.inner,)),)
        if n == 1:
            return self.head_norm(y, 1, weight)
        return self.builder.op(
            "weigh", (self.head_norm(y, n, ()),), self.layer.value("scan.weighed"), weight
        )

    def gated_norm(self, y: str, gate: str) -> str:
        """Each head is normed by itself."""
        weight = self.layer.weight("scan_norm", (self.spec.head_dim,))
        return self.gated(self.head_norm(y, self.spec.n_heads, (weight,)), gate)

    def gated(self, y: str, gate: str) -> str:
        return self.builder.op("mul_columns", (y, gate), self.layer.value("scan.gated"), column=0)

    def head_norm(self, y: str, n: int, weights: tuple[str, ...]) -> str:
        out, eps = self.layer.value("scan.norm"), self.config.norm_eps
        return record_head_norm(self.builder, y, out, n, eps, weights)
