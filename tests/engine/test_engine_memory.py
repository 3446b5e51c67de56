from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.engine.config import EngineConfig, KVCacheDType
from rooftree.engine.host_memory import available_bytes
from rooftree.engine.memory import GIB, Footprint, check_weights, plan_memory, wanted_model_len
from rooftree.errors import ConfigError

MIB = 1 << 20


def footprint(block_bytes: int = 1024, activations: int = 0) -> Footprint:
    return Footprint(weight_bytes=5 * MIB, activation_bytes=activations, kv_bytes_per_block=block_bytes)


def test_weights_that_do_not_fit_are_refused_before_they_are_loaded():
    check_weights("model", 3 * GIB, 3 * GIB)
    check_weights("model", 3 * GIB, None)
    with pytest.raises(ConfigError, match=r"big\.gguf: .*3\.00 GiB, but 2\.50 GiB"):
        check_weights("big.gguf", 3 * GIB, 5 * GIB // 2)


def test_the_pool_is_a_share_of_what_is_free_after_activations():
    plan = plan_memory(
        EngineConfig(kv_cache_fraction=0.25), 8192, footprint(MIB, activations=2 * GIB), 4 * GIB + MIB
    )
    assert plan.num_blocks == 512
    assert plan.max_model_len == 8192
    assert plan.notices == []


def test_the_pool_is_never_larger_than_full_length_sequences_could_use():
    plan = plan_memory(EngineConfig(max_num_seqs=3), 100, footprint(), 64 * GIB)
    assert plan.num_blocks == 3 * 7
    assert "--max-num-seqs 3" in plan.rows[2][2]


def test_an_explicit_size_is_taken_as_it_is():
    plan = plan_memory(EngineConfig(kv_cache_memory=10 * MIB + 5), 100, footprint(MIB), 64 * GIB)
    assert plan.num_blocks == 10
    assert plan.rows[2] == ("KV cache", "10.0 MiB", "--kv-cache-memory")


def test_an_explicit_size_needs_no_word_from_the_system():
    assert plan_memory(EngineConfig(kv_cache_memory=10 * MIB), 100, footprint(MIB), None).num_blocks == 10
    with pytest.raises(ConfigError, match="--kv-cache-memory"):
        plan_memory(EngineConfig(), 100, footprint(MIB), None)


def test_more_than_there_is_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"4\.00 GiB, but 3\.00 GiB") as caught:
        plan_memory(EngineConfig(kv_cache_memory=4 * GIB), 100, footprint(activations=GIB), 4 * GIB)
    assert "--kv-cache-memory" in str(caught.value)


def test_a_length_left_open_is_lowered_to_the_pool_and_said_aloud():
    plan = plan_memory(EngineConfig(kv_cache_memory=32 * 1024), 8192, footprint(), GIB)
    assert plan.max_model_len == 32 * 16
    (notice,) = plan.notices
    assert "8192" in notice
    assert "512" in notice
    assert "--kv-cache-memory" in notice
    assert plan.rows[-1] == ("sequences at full length", "1.0", "--max-model-len 512")


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16", "int8", "fp8"])
def test_a_smaller_element_is_named_where_there_is_one(dtype: KVCacheDType):
    config = EngineConfig(kv_cache_memory=32 * 1024, kv_cache_dtype=dtype)
    (notice,) = plan_memory(config, 8192, footprint(), GIB).notices
    assert ("--kv-cache-dtype int8" in notice) == (dtype not in ("int8", "fp8"))


def test_a_length_asked_for_that_does_not_fit_is_refused_with_every_number_and_flag():
    with pytest.raises(ConfigError) as caught:
        plan_memory(EngineConfig(max_model_len=32_000, kv_cache_fraction=0.5), 40_000, footprint(MIB), GIB)
    message = str(caught.value)
    for part in ("32000 tokens", "1.95 GiB", "512.0 MiB", "1.00 GiB available", "is 8192 tokens"):
        assert part in message
    for flag in ("--max-model-len", "--kv-cache-memory", "--kv-cache-dtype"):
        assert flag in message


def test_a_pool_without_a_single_block_is_refused():
    with pytest.raises(ConfigError, match="longest length that fits is 0 tokens"):
        plan_memory(EngineConfig(kv_cache_memory=1023), 8192, footprint(1024), GIB)


def test_a_length_beyond_the_model_is_refused():
    assert wanted_model_len(EngineConfig(), 2048) == 2048
    assert wanted_model_len(EngineConfig(max_model_len=77), 2048) == 77
    with pytest.raises(ConfigError, match="2048"):
        wanted_model_len(EngineConfig(max_model_len=2049), 2048)


@given(
    fraction=st.floats(0.01, 1.0),
    seqs=st.integers(1, 300),
    model_len=st.integers(1, 100_000),
    block_bytes=st.integers(1, 10**7),
    available=st.integers(0, 10**11),
)
def test_a_plan_always_fits_and_holds_one_whole_sequence(
    fraction: float, seqs: int, model_len: int, block_bytes: int, available: int
):
    config = EngineConfig(kv_cache_fraction=fraction, max_num_seqs=seqs)
    try:
        plan = plan_memory(config, model_len, footprint(block_bytes), available)
    except ConfigError:
        assert int(available * fraction) < block_bytes
        return
    assert plan.num_blocks * block_bytes <= available * fraction
    assert 1 <= plan.max_model_len <= plan.num_blocks * config.block_size
    assert (plan.max_model_len < model_len) == bool(plan.notices)
    assert plan.num_blocks <= seqs * -(-model_len // config.block_size)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       16384 kB\nMemAvailable:    8192 kB\n"}


def test_available_memory_is_the_machines_without_groups(tmp_path: Path):
    assert available_bytes(write(tmp_path, MEMINFO)) == 8 * MIB


def test_available_memory_is_unknown_where_nothing_says_it(tmp_path: Path):
    assert available_bytes(tmp_path) is None


def test_available_memory_minds_every_v2_group_around_the_process(tmp_path: Path):
    groups = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.current": "1\n",
        "sys/fs/cgroup/outer/memory.max": f"{4 * MIB}\n",
        "sys/fs/cgroup/outer/memory.current": f"{3 * MIB}\n",
        "sys/fs/cgroup/outer/memory.stat": f"anon 5\ninactive_file {MIB}\nactive_file 7\n",
    }
    assert available_bytes(write(tmp_path, MEMINFO | groups)) == 2 * MIB + 7


def test_available_memory_inside_a_container_reads_the_root_of_the_mount(tmp_path: Path):
    groups = {
        "proc/self/cgroup": "0::/docker/abc\n",
        "sys/fs/cgroup/memory.max": f"{2 * MIB}\n",
        "sys/fs/cgroup/memory.current": f"{MIB}\n",
    }
    assert available_bytes(write(tmp_path, MEMINFO | groups)) == MIB


def test_available_memory_minds_v1_groups(tmp_path: Path):
    groups = {
        "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{5 * MIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{2 * MIB}\n",
        "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 99\ntotal_inactive_file 10\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
    }
    assert available_bytes(write(tmp_path, MEMINFO | groups)) == 3 * MIB + 10


def test_available_memory_is_never_negative(tmp_path: Path):
    groups = {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/memory.max": "10\n",
        "sys/fs/cgroup/memory.current": "20\n",
    }
    assert available_bytes(write(tmp_path, MEMINFO | groups)) == 0


def test_this_machine_says_something():
    available = available_bytes()
    assert available is not None
    assert available > 0
