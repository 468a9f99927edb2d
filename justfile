# What a person and CI both run. `just` alone lists it. Each recipe ends with a short table.

# Tests that isolate need root; everything is built as whoever calls, and only the test program is run by sudo.
as_root := if `id -u` == "0" { "" } else { "CARGO_TARGET_" + uppercase(arch()) + "_UNKNOWN_LINUX_GNU_RUNNER=\"sudo -E\"" }
sudo := if `id -u` == "0" { "" } else { "sudo -E " }
target := env("CARGO_TARGET_DIR", justfile_directory() / "target")
# What is built quickly, for tests that need no runtime. CI has them built together with the others: `just profile=tried test`.
profile := "dev"
# What is measured. CI measures what it has built already: `just measured=tried figures --quick`.
measured := "release"
# Always the whole workspace: with another selection of packages their features differ, and everything is built again. The
# tests of `cli` bring the executable with them.
tests := "cargo test --workspace --locked --no-fail-fast --profile"
real := "BELLJAR_REAL=1 BELLJAR_BINARY=" + target / "tried/belljar" + " " + as_root + " " + tests + " tried"
one_at_a_time := " -- --test-threads=1 --nocapture"
quick_attacks := "containers 'scripts/twice env BELLJAR_RUNTIMES=runc " + real + " --test \"attacks*\"" + one_at_a_time + "' gvisor 'scripts/twice env BELLJAR_RUNTIMES=runsc " + real + " --test attacks" + one_at_a_time + "'"
quick := "containers 'scripts/twice env BELLJAR_RUNTIMES=runc " + real + " --test \"real_*\"" + one_at_a_time + "' gvisor 'scripts/twice env BELLJAR_RUNTIMES=runsc " + real + " --test real_laws --test real_exec --test real_output --test real_limits --test real_code" + one_at_a_time + "'"
twice := justfile_directory() / "scripts/twice"
soaked := "BELLJAR_REAL=1 BELLJAR_BINARY=" + target / "release/belljar" + " " + as_root + " " + tests + " release"

[private]
default:
    @just --list --unsorted

# What a fresh Debian 12 or 13 needs to build Belljar and run all its tests
setup:
    @scripts/setup.sh

# Format, lints, documentation, dependencies, house rules
check:
    @scripts/steps \
        format 'cargo fmt --all --check' \
        lints 'cargo clippy --workspace --profile {{profile}} --all-targets --locked -- -D warnings' \
        docs 'RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --profile {{profile}} --no-deps --document-private-items --locked' \
        dependencies 'cargo deny --all-features check --hide-inclusion-graph bans licenses sources' \
        house 'cargo test --workspace --profile {{profile}} --locked --test house -- --nocapture'

# Every test that needs neither root nor a runtime; those that do say so and pass
test *args:
    @scripts/steps test 'scripts/twice {{tests}} {{profile}} {{args}} --'

# The tests that start real sandboxes, one at a time: the laws of the runtimes, and targets named real_*; `--quick` has gVisor only where it is what is tried
real *args:
    @scripts/steps {{ if args == "--quick" { quick } else { "real 'scripts/twice env " + real + " --test \"real_*\" " + args + one_at_a_time + "'" } }}

# Docker and Podman, which it starts, and Daytona, as a server of the test tree: laws, parity, restarts, what people are told; `--full` for every scenario and attack on all as well
engines size="--quick" *args:
    @{{tests}} tried --no-run --test real_engine --test real_laws
    @scripts/steps engines 'scripts/with-engines scripts/twice env BELLJAR_RUNTIMES=docker,podman,daytona {{real}} \
        {{ if size == "--full" { "--test real_exec --test real_output --test real_limits --test real_lifecycle --test real_terminal_inside --test attacks" } else { "" } }} \
        --test real_engine --test real_laws {{args}} -- --test-threads=1 --nocapture'

# The Python SDK: format, lints, types, and its suite on a real server; `just sdk -m thousand` for a thousand sandboxes at once
sdk *args:
    @{{tests}} tried --no-run --test real_cli
    @scripts/steps sdk 'scripts/python sdk/python sh -c "ruff check . && ruff format --check . && mypy && pyright && {{twice}} pytest -q {{args}}"'

# Unmodified clients of others: MCP's official ones, the cookbook's agents with OpenAI's, Anthropic's and LangChain's packages, a new user's path
compat *args:
    @{{tests}} tried --no-run --test real_cli
    @scripts/steps compat 'scripts/with-engines scripts/python compat {{twice}} pytest -q {{args}}'

# Every attack of attacks/, each with its positive control; `--quick` has those on gVisor that are on the sandbox itself
attacks *args:
    @{{tests}} tried --no-run --test real_cli
    @scripts/steps {{ if args == "--quick" { quick_attacks } else { "attacks 'scripts/twice env " + real + " --test \"attacks*\" " + args + one_at_a_time + "'" } }}

# The recipes of images/ from nothing, with what each must hold; `just images interpreter` for one
images names="base,python,node,analysis,interpreter":
    @scripts/steps images 'env BELLJAR_IMAGES={{names}} {{real}} --test images -- --nocapture'

# The figures of the specification: times and sizes, side by side with bare processes, bwrap and plain runc
figures *args:
    @{{tests}} {{measured}} --no-run --test "real_*"
    @{{sudo}}env BELLJAR_BINARY={{target}}/{{measured}}/belljar {{target}}/{{measured}}/figures {{args}}

# Whole systems side by side, by scenarios that are data: bench/README.md; `just bench --quick` for a short look
bench *args:
    @{{tests}} {{measured}} --no-run --test real_cli --test bench_command
    @engines=; docker version >/dev/null 2>&1 || ! command -v dockerd >/dev/null || engines=scripts/with-engines; \
        {{sudo}}$engines env BELLJAR_BINARY={{target}}/{{measured}}/belljar {{target}}/{{measured}}/bench {{args}}

# A server killed again and again, sandboxes that come and go, thousands of forks, large files: in full size; `just soak kills=50 cycles=100` for less
soak *sizes:
    @{{tests}} release --no-run --test "real_*"
    @env kills=200 cycles=1000 runs=10000 bytes=5368709120 files=100000 {{sizes}} scripts/steps \
        kills 'BELLJAR_KILLS=$kills {{soaked}} --test real_service -- --test-threads=1 --nocapture' \
        cycles 'BELLJAR_CYCLES=$cycles {{soaked}} --test real_cycles -- --test-threads=1 --nocapture' \
        runs 'BELLJAR_RUNS=$runs {{soaked}} --test real_runs -- --test-threads=1 --nocapture' \
        sharing 'BELLJAR_CROWD=$cycles {{soaked}} --test real_sharing -- --test-threads=1 --nocapture' \
        files 'BELLJAR_TRANSFER_BYTES=$bytes BELLJAR_ARCHIVE_FILES=$files {{soaked}} --test real_files -- --test-threads=1 --nocapture'

# The README's commands, literally, in a fresh Debian
first-minute *args:
    @scripts/steps first-minute 'scripts/first-minute.sh {{args}}'

# The laws and the limits on cgroup version 2: Debian's own kernel, in QEMU
v2 *args:
    @scripts/steps v2 'scripts/v2.sh {{args}}'

# Only the guest, to look at: the build of `node` makes its own and carries it in `belljar`
guest:
    cargo build --profile guest -p guest --target {{arch()}}-unknown-linux-musl --locked
