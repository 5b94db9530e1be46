"""Random steps in which much can move: what planners are tested on.

`random_ops` is ops near and far that read, change and overwrite whatever there is. `random_step` looks like training:
forward, backward and the optimizer of a net with branches, as a recorder would have seen it: parameters, optimizer
state, gradients of the step before with their successors, running statistics; ops in place, of several outputs, on
views, with scratch memory; storages that are made by one op and first touched by a later one; inputs from the host and
values that the host reads.
"""

from dataclasses import dataclass, field
from random import Random

from umadvise.recording.builder import TraceBuilder
from umadvise.records.enums import Phase, Role
from umadvise.records.trace import Access, EventKind, OpClass, Trace

MIB = 1 << 20
MADE = Access.WRITE | Access.WHOLE
IN_PLACE = Access.READ | Access.WRITE | Access.IN_PLACE
_CLASSES = (OpClass.CONVOLUTION, OpClass.MATMUL, OpClass.ELEMENTWISE, OpClass.ELEMENTWISE, OpClass.REDUCTION)


_FLAGS = (Access.READ, Access.READ, Access.READ, MADE, Access.WRITE, IN_PLACE)


def random_ops(random: Random) -> Trace:
    """Maps, weights, a gradient of before with its successor, and scratch; all follows from the generator's seed."""
    builder = TraceBuilder()
    weights = [builder.allocate(random.randint(1, 4) * MIB, Role.PARAMETER) for _ in range(2)]
    if random.random() < 0.2:
        builder.event(EventKind.HOST_WRITE, weights[0], 0, MIB)
    before = builder.allocate(4 * MIB, Role.GRADIENT)
    builder.free(before)
    maps: list[int] = []
    for _ in range(random.randint(5, 50)):
        builder.begin_op("aten::op", duration_ns=random.randint(0, 10**6), phase=random.choice(list(Phase)))
        for _ in range(random.randint(0, 2)):
            maps.append(builder.allocate(random.randint(1, 16) * MIB, Role.INTERMEDIATE))
            if random.random() < 0.8:
                builder.access(maps[-1], MADE)
        if random.random() < 0.3:
            scratch = builder.allocate(random.randint(1, 8) * MIB, Role.WORKSPACE)
            builder.access(scratch, Access.WRITE)
            builder.free(scratch)
        for each in (*random.sample(maps, min(len(maps), random.randint(0, 3))), random.choice(weights)):
            builder.access(each, random.choice(_FLAGS))
        if random.random() < 0.5:
            builder.end_op()
        if maps and random.random() < 0.05:
            kind = random.choice((EventKind.HOST_READ, EventKind.HOST_WRITE))
            builder.event(kind, random.choice((*weights, random.choice(maps))), 0, MIB)
        builder.end_op()
        while maps and (len(maps) > 14 or random.random() < 0.35):
            done = maps.pop(random.randrange(len(maps)))
            if random.random() < 0.05:
                builder.event(EventKind.HOST_READ, done, 0, MIB)
            builder.free(done)
    builder.begin_op("aten::op", duration_ns=10**6)
    builder.set_successor(before, builder.allocate(4 * MIB, Role.GRADIENT))
    builder.end_op()
    return builder.finish(target="cuda", source="synthetic", workload="random")


def random_step(random: Random) -> Trace:
    """One step; all that it does follows from the generator's seed."""
    return _Step(random).trace()


@dataclass
class _Layer:
    """What backward needs of an op of forward."""

    module: str
    op_class: OpClass
    weight: int | None
    saved: list[int]


@dataclass
class _Step:
    random: Random
    builder: TraceBuilder = field(default_factory=TraceBuilder)
    sizes: dict[int, int] = field(default_factory=dict)
    maps: list[int] = field(default_factory=list)  # of forward, alive
    tape: list[_Layer] = field(default_factory=list)

    def chance(self, part: float) -> bool:
        return self.random.random() < part

    def allocate(self, mib: int, role: Role) -> int:
        bytes_ = mib * MIB + self.random.choice((0, 0, 512, 4096))
        storage = self.builder.allocate(bytes_, role)
        self.sizes[storage] = bytes_
        return storage

    def trace(self) -> Trace:
        self.before()
        for index in range(self.random.randint(3, 14)):
            self.forward(index)
        self.loss()
        self.backward()
        self.optimizer()
        return self.builder.finish(target="cuda", source="synthetic", workload="random")

    # ---- what is there before ----------------------------------------------------------------------------------------

    def before(self) -> None:
        random = self.random
        self.weights = [self.allocate(random.randint(1, 6), Role.PARAMETER) for _ in range(random.randint(1, 4))]
        self.states = {each: self.twin(each, Role.OPTIMIZER_STATE) for each in self.weights if self.chance(0.6)}
        self.old_gradients = {each: self.twin(each, Role.GRADIENT) for each in self.weights if self.chance(0.7)}
        self.gradients: dict[int, int] = {}
        self.statistics = self.allocate(1, Role.INTERMEDIATE)
        self.input = self.allocate(random.randint(2, 8), Role.INPUT)
        if self.chance(0.3):
            self.builder.event(EventKind.HOST_WRITE, self.input, 0, self.sizes[self.input])
        self.frees_gradients_first = self.chance(0.5)
        if self.frees_gradients_first and self.chance(0.3):
            self.free_old_gradients()

    def twin(self, storage: int, role: Role) -> int:
        twin = self.builder.allocate(self.sizes[storage], role)
        self.sizes[twin] = self.sizes[storage]
        return twin

    def free_old_gradients(self) -> None:
        """As zero_grad does: those that backward makes take their places."""
        self.freed_gradients = dict(self.old_gradients)
        for storage in self.old_gradients.values():
            self.builder.free(storage)
        self.old_gradients = {}

    # ---- ops ---------------------------------------------------------------------------------------------------------

    def begin(self, phase: Phase, module: str = "", op_class: OpClass = OpClass.ELEMENTWISE, **flags: bool) -> None:
        duration_ns = self.random.choice((0, 10**4, 10**5, 10**6, 3 * 10**6))
        self.builder.begin_op(
            "aten::op", phase=phase, module=module, op_class=op_class, duration_ns=duration_ns, **flags
        )

    def read(self, storage: int) -> None:
        """All of it, or a view of it, or two."""
        half = self.sizes[storage] // 2
        if self.chance(0.15):
            self.builder.access(storage, Access.READ, half, self.sizes[storage] - half)
        elif self.chance(0.1):
            self.builder.access(storage, Access.READ, half // 2, half)
            self.builder.access(storage, Access.READ, 0, half)
        else:
            self.builder.access(storage, Access.READ)

    def write(self, storage: int) -> None:
        """All of a new storage, at once or in halves."""
        half = self.sizes[storage] // 2
        if self.chance(0.1):
            self.builder.access(storage, MADE, half, self.sizes[storage] - half)
            self.builder.access(storage, MADE, 0, half)
        else:
            self.builder.access(storage, MADE)

    def scratch(self) -> None:
        """Memory of a library, given back within the op; sometimes another piece after it."""
        for _ in range(self.random.choice((0, 0, 0, 1, 2))):
            scratch = self.allocate(self.random.randint(1, 8), Role.WORKSPACE)
            if self.chance(0.5):
                self.builder.access(scratch, Access.WRITE)
            self.builder.free(scratch)

    def made_before(self, phase: Phase, module: str) -> int | None:
        """What an op of its own makes and does not touch (aten::empty), for the next one to write."""
        if not self.chance(0.15):
            return None
        self.begin(phase, module, creates=True)
        storage = self.allocate(self.random.randint(2, 12), Role.INTERMEDIATE)
        self.builder.end_op()
        return storage

    # ---- phases ------------------------------------------------------------------------------------------------------

    def forward(self, index: int) -> None:
        random = self.random
        module, op_class = random.choice(("", "a", f"net.{index}", f"net.{index}")), random.choice(_CLASSES)
        weight = random.choice(self.weights) if op_class in (OpClass.CONVOLUTION, OpClass.MATMUL) else None
        recent = self.maps[-3:] if self.maps and self.chance(0.8) else self.maps
        inputs = random.sample(recent, min(len(recent), random.choice((1, 1, 1, 2)))) or [self.input]
        if self.maps and self.chance(0.1):
            inputs.append(self.input)
        made = self.made_before(Phase.FORWARD, module)
        self.begin(Phase.FORWARD, module, op_class)
        in_place = made is None and bool(self.maps) and inputs[0] in self.maps and self.chance(0.2)
        for each in inputs[1:] if in_place else inputs:
            self.read(each)
        if weight is not None:
            self.read(weight)
        if self.chance(0.15):
            self.builder.access(self.statistics, IN_PLACE)
        self.scratch()
        outputs = [inputs[0]] if in_place else [made if made is not None else self.new_map()]
        if in_place:
            self.builder.access(outputs[0], IN_PLACE)
        else:
            if self.chance(0.25):
                outputs.append(self.new_map(random.choice((1, 4))))
            for each in outputs:
                self.write(each)
        self.scratch()
        self.builder.end_op()
        self.maps += [each for each in outputs if each not in self.maps]
        saved = [each for each in (*inputs, *outputs) if self.chance(0.6)]
        self.tape.append(_Layer(module, op_class, weight, saved))
        self.between()

    def new_map(self, mib: int | None = None) -> int:
        return self.allocate(self.random.randint(2, 14) if mib is None else mib, Role.INTERMEDIATE)

    def between(self) -> None:
        """What happens after ops: old gradients go, maps that backward does not need go, the host looks at one."""
        if self.frees_gradients_first and self.old_gradients and self.chance(0.5):
            self.free_old_gradients()
        if self.maps and self.chance(0.06):
            self.builder.event(EventKind.HOST_READ, self.random.choice(self.maps), 0, MIB)
        if self.maps and self.chance(0.04):
            storage = self.random.choice(self.maps)
            bytes_ = self.random.choice((self.sizes[storage], MIB))
            self.builder.event(EventKind.HOST_WRITE, storage, 0, bytes_)
        needed = {each for layer in self.tape for each in layer.saved}
        for each in self.maps[:-1]:
            if each not in needed and self.chance(0.5):
                self.builder.free(each)
                self.maps.remove(each)

    def loss(self) -> None:
        self.begin(Phase.FORWARD, "loss", OpClass.REDUCTION, host_touch=self.chance(0.3))
        self.read(self.maps[-1])
        self.loss_value = self.allocate(0, Role.INTERMEDIATE)
        self.builder.access(self.loss_value, MADE)
        self.builder.end_op()
        if self.chance(0.5):
            self.builder.event(EventKind.HOST_READ, self.loss_value, 0, self.sizes[self.loss_value])

    def backward(self) -> None:
        random = self.random
        if self.old_gradients and self.frees_gradients_first:
            self.free_old_gradients()
        current = None
        while self.tape:
            layer = self.tape.pop()
            made = self.made_before(Phase.BACKWARD, layer.module)
            self.begin(Phase.BACKWARD, layer.module, layer.op_class)
            for each in dict.fromkeys(layer.saved):
                if self.chance(0.07):
                    self.builder.access(each, IN_PLACE)
                else:
                    self.read(each)
            if current is not None:
                self.read(current)
            self.scratch()
            gradient = made if made is not None else self.new_map()
            self.write(gradient)
            if layer.weight is not None:
                self.read(layer.weight)
                self.gradient_of(layer.weight)
            self.builder.end_op()
            if current is not None:
                self.builder.free(current)
            current = gradient
            needed = {each for left in self.tape for each in left.saved}
            for each in [each for each in self.maps if each not in needed]:
                if self.chance(0.8):
                    self.builder.free(each)
                    self.maps.remove(each)
        for each in [*self.maps, self.loss_value, *([current] if current is not None else [])]:
            self.builder.free(each)
        if random.random() < 0.2:
            self.begin(Phase.NONE)  # touches nothing
            self.builder.end_op()

    def gradient_of(self, weight: int) -> None:
        """Made, or added to: to what this step has made, or to the last step's."""
        there = self.gradients.get(weight, self.old_gradients.get(weight))
        if there is None:
            there = self.twin(weight, Role.GRADIENT)
            self.builder.access(there, MADE)
        else:
            self.builder.access(there, IN_PLACE)
        self.gradients[weight] = there

    def optimizer(self) -> None:
        for weight, gradient in self.gradients.items():
            self.begin(Phase.OPTIMIZER)
            self.builder.access(gradient, Access.READ)
            if weight in self.states:
                self.builder.access(self.states[weight], MADE if self.chance(0.1) else IN_PLACE)
            self.builder.access(weight, IN_PLACE)
            self.builder.end_op()
        before = getattr(self, "freed_gradients", {})
        for weight, gradient in self.gradients.items():
            if weight in before:
                self.builder.set_successor(before[weight], gradient)
            elif gradient not in self.old_gradients.values():
                self.builder.free(gradient)
        if self.chance(0.3):
            self.builder.event(EventKind.HOST_READ, self.weights[0], 0, self.sizes[self.weights[0]])
