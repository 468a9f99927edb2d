# Recipes for developers and CI. `just` lists the recipes. At its end, each recipe prints a short table of its steps.

# Tests that start sandboxes need root. The build runs as the calling user, and only the test program is started with sudo.
as_root := if `id -u` == "0" { "" } else { "CARGO_TARGET_" + uppercase(arch()) + "_UNKNOWN_LINUX_GNU_RUNNER=\"sudo -E\"" }
sudo := if `id -u` == "0" { "" } else { "sudo -E " }
target := env("CARGO_TARGET_DIR", justfile_directory() / "target")
# Build profile of `just check` and `just test`. The default, `dev`, compiles fastest. `just real` and `just attacks` always use the
# profile `tried`. CI runs all of these recipes, so it uses `tried` for every recipe that runs tests (`just profile=tried test`) and
# compiles the workspace only once.
profile := "dev"
# Build profile of the executable that benchmarks measure. `just measured=tried figures --quick` measures the executable that the
# tests use, instead of a release build.
measured := "release"
# This command always builds the whole workspace. If only some packages were selected, cargo would enable other features of the
# dependencies and compile all of them again. The tests of `cli` also build the executable.
tests := "cargo test --workspace --locked --no-fail-fast --profile"
real := "BELLGLASS_REAL=1 BELLGLASS_BINARY=" + target / "tried/bellglass" + " " + as_root + " " + tests + " tried"
one_at_a_time := " -- --test-threads=1 --nocapture"
quick_attacks := "containers 'scripts/twice env BELLGLASS_RUNTIMES=runc " + real + " --test attacks" + one_at_a_time + "' gvisor 'scripts/twice env BELLGLASS_RUNTIMES=runsc " + real + " --test attacks" + one_at_a_time + " sandbox::" + "'"
quick := "containers 'scripts/twice env BELLGLASS_RUNTIMES=runc " + real + " --test \"real*\"" + one_at_a_time + "' gvisor 'scripts/twice env BELLGLASS_RUNTIMES=runsc " + real + " --test real" + one_at_a_time + " laws:: exec:: output:: limits:: code::" + "'"
twice := justfile_directory() / "scripts/twice"
soaked := "BELLGLASS_REAL=1 BELLGLASS_BINARY=" + target / "release/bellglass" + " " + as_root + " " + tests + " release"

[private]
default:
    @just --list --unsorted

# Install everything needed to build and test Bellglass on Debian 12 or 13
setup:
    @scripts/setup.sh

# Check format, lints, documentation, spelling and dependencies
lint:
    @scripts/steps \
        format 'cargo fmt --all --check' \
        lints 'cargo clippy --workspace --profile {{profile}} --all-targets --locked -- -D warnings' \
        docs 'RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --features node/undefended --profile {{profile}} --no-deps --document-private-items --locked' \
        spelling 'typos' \
        dependencies 'cargo deny --all-features check --hide-inclusion-graph bans licenses sources'

# Check the same as `just lint`, and the house rules, which `just test` checks too
check: lint
    @scripts/steps house 'cargo test --workspace --profile {{profile}} --locked --test house -- --nocapture'

# `just test` also starts the tests that need root or a runtime, but these tests only report the missing requirement and pass.
#
# Run all tests that need neither root nor a runtime
test *args:
    @scripts/steps test 'scripts/twice {{tests}} {{profile}} {{args}} --'

# These are the test targets named `real` and `real_cli`. `just real --quick` runs all of them on runc, but only some of them on gVisor.
#
# Run the tests that start real sandboxes, one at a time; with `--quick`, in smaller sizes
real *args:
    @scripts/steps {{ if args == "--quick" { quick } else { "real 'scripts/twice env BELLGLASS_FULL=1 " + real + " --test \"real*\" " + args + one_at_a_time + "'" } }}

# Each guide is tested in its own namespaces, so three guides are tested in parallel.
#
# Execute every command of the README, the guides and docs/operate
guides *args:
    @{{tests}} tried --no-run --test real_cli --test guides
    @scripts/steps guides 'scripts/twice env {{real}} --test guides {{args}} -- --test-threads=3 --nocapture'

# The recipe starts Docker and Podman. For Daytona, the tests start a server of their own. The tests cover the rules that apply to every
# runtime, equal behaviour of the backends, restarts and messages.
#
# Test the Docker, Podman and Daytona backends; `--full` adds every scenario and attack
engines size="--quick" *args:
    @{{tests}} tried --no-run --test real --test attacks
    @scripts/steps engines 'scripts/with-engines scripts/twice env BELLGLASS_RUNTIMES=docker,podman,daytona {{real}} --test real {{args}} \
        -- --test-threads=1 --nocapture engine:: laws:: {{ if size == "--full" { "exec:: output:: limits:: lifecycle:: terminal_inside::" } else { "" } }}' \
        {{ if size == "--full" { "attacks 'scripts/with-engines scripts/twice env BELLGLASS_RUNTIMES=docker,podman,daytona " + real + " --test attacks" + one_at_a_time + " sandbox::' " } else { "" } }} \
        neighbours 'scripts/with-engines scripts/twice env BELLGLASS_RUNTIMES=docker,podman {{real}} --test attacks -- --test-threads=1 --nocapture sandbox::neighbour::'

# `just sdk` checks format, lints and types, and runs the SDK's test suite.
#
# Check the Python SDK and test it on a real server; `just sdk -m thousand` runs the large test
sdk *args:
    @{{tests}} tried --no-run --test real_cli
    @scripts/steps sdk 'scripts/python sdk/python sh -c "ruff check . && ruff format --check . && mypy && pyright && {{twice}} pytest -q {{args}}"'

# `just compat` tests MCP's official clients, E2B's SDKs, the cookbook's agents with the OpenAI, Anthropic and LangChain packages,
# clients that generators write from docs/openapi.json, and the first steps of a new user.
#
# Test unmodified third-party clients; `--quick` tests only the newest release of each E2B SDK
compat *args:
    @{{tests}} tried --no-run --test real_cli
    @scripts/steps compat 'scripts/with-engines scripts/python compat env {{ if args == "--quick" { "BELLGLASS_E2B=newest " } else { "" } }}{{twice}} pytest -q {{ if args == "--quick" { "" } else { args } }}'

# `just attacks --quick` runs all attacks on runc. On gVisor, it runs only the attacks on the sandbox itself.
#
# Run every attack of attacks/ and its control; with `--quick`, in smaller sizes
attacks *args:
    @{{tests}} tried --no-run --test real_cli
    @scripts/steps {{ if args == "--quick" { quick_attacks } else { "attacks 'scripts/twice env BELLGLASS_FULL=1 " + real + " --test attacks " + args + one_at_a_time + "'" } }}

# Build every image of images/ from scratch and check it; `just images interpreter` builds only the image `interpreter`
images names="base,python,node,analysis,interpreter":
    @scripts/steps images 'env BELLGLASS_IMAGES={{names}} {{real}} --test images -- --nocapture'

# Measure the times and sizes in the specification, and compare them with those of bare processes, bwrap and plain runc
figures *args:
    @{{tests}} {{measured}} --no-run --test "real*"
    @{{sudo}}env BELLGLASS_BINARY={{target}}/{{measured}}/bellglass {{target}}/{{measured}}/figures {{args}}

# Run the benchmark that compares whole systems (see bench/README.md); `--quick` for a short run
bench *args:
    @{{tests}} {{measured}} --no-run --test real_cli --test bench_command
    @engines=; docker version >/dev/null 2>&1 || ! command -v dockerd >/dev/null || engines=scripts/with-engines; \
        {{sudo}}$engines env BELLGLASS_BINARY={{target}}/{{measured}}/bellglass {{target}}/{{measured}}/bench {{args}}

# The soak tests kill servers repeatedly, start and stop many sandboxes, fork thousands of times, and transfer large files.
#
# Run the soak tests at full size; `just soak kills=50 cycles=100` runs fewer kills and cycles
soak *sizes:
    @{{tests}} release --no-run --test "real*"
    @env kills=200 cycles=1000 runs=10000 bytes=5368709120 files=100000 {{sizes}} scripts/steps \
        kills 'BELLGLASS_KILLS=$kills {{soaked}} --test real -- --test-threads=1 --nocapture service::' \
        cycles 'BELLGLASS_CYCLES=$cycles {{soaked}} --test real -- --test-threads=1 --nocapture cycles::' \
        runs 'BELLGLASS_RUNS=$runs {{soaked}} --test real -- --test-threads=1 --nocapture many_runs::' \
        sharing 'BELLGLASS_CROWD=$cycles {{soaked}} --test real -- --test-threads=1 --nocapture sharing::' \
        files 'BELLGLASS_TRANSFER_BYTES=$bytes BELLGLASS_ARCHIVE_FILES=$files {{soaked}} --test real -- --test-threads=1 --nocapture files::'

# Execute the README's commands literally, in a fresh Debian
first-minute *args:
    @scripts/steps first-minute 'scripts/first-minute.sh {{args}}'

# Run the tests of runtimes and limits on cgroup version 2, with Debian's kernel in QEMU
v2 *args:
    @scripts/steps v2 'scripts/v2.sh {{args}}'

# Build only the guest, for inspection; the guest inside `bellglass` is built by the build script of `host`
guest:
    cargo build --profile guest -p guest --target {{arch()}}-unknown-linux-musl --locked
