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
tests := justfile_directory() / "scripts/tests"
# Builds the tests of the whole workspace and everything that they start; `ready` also builds the templates of the tests.
build := "cargo nextest run --workspace --locked --no-run --cargo-profile"
ready := build + " tried && " + sudo + "env BELLGLASS_BINARY=" + target / "tried/bellglass scripts/templates base interpreter node"
binary := "BELLGLASS_BINARY=" + target / "tried/bellglass"
real := "env " + binary + " " + as_root
# The options of a run of tests that need root or a runtime. These tests are ignored unless they are asked for.
needs_root := "--cargo-profile tried --run-ignored all"
of_real := "(binary(=real) or binary(=real_cli)) and not test(/^engine::/)"
# The tests of real sandboxes that also run on gVisor with `--quick`.
gvisor := "(test(/^(laws|exec|output|limits|code|files::wire)::/) or test(/^files::[a-z_]*$/) or test(/^egress::(what_is|without)/))"
release := "BELLGLASS_BINARY=" + target / "release/bellglass"
soaked := as_root + " " + tests + " soak --cargo-profile release --run-ignored all -E \"binary(=real) and test(/^"
pytest := justfile_directory() / "scripts/pytest"

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
    @scripts/steps house 'cargo test --package house --profile {{profile}} --locked -- --nocapture'

# The tests that need root or a runtime are ignored, and the table shows how many.
#
# Run all tests that need neither root nor a runtime
test *args:
    @scripts/steps test '{{tests}} test --cargo-profile {{profile}} {{args}}'

# `just real --quick` runs all of them on runc, but only some of them on gVisor.
#
# Run the tests that start real sandboxes; with `--quick`, in smaller sizes
real *args:
    @{{ready}}
    @scripts/steps {{ if args == "--quick" { \
        "containers '" + real + " BELLGLASS_RUNTIMES=runc " + tests + " real " + needs_root + " -E \"" + of_real + "\"' " + \
        "gvisor '" + real + " BELLGLASS_RUNTIMES=runsc " + tests + " real " + needs_root + " -E \"" + of_real + " and " + gvisor + "\"'" } else { \
        "real '" + real + " BELLGLASS_FULL=1 " + tests + " real " + needs_root + " -E \"" + of_real + "\" " + args + "'" } }}

# Each guide is tested in its own namespaces, so three guides are tested in parallel.
#
# Execute every command of the README, the guides and docs/operate
guides *args:
    @{{ready}}
    @scripts/steps guides '{{real}} {{tests}} guides {{needs_root}} -E "binary(=guides)" {{args}}'

# The recipe starts Docker and Podman. For Daytona, the tests start a server of their own. The tests cover the rules that apply to every
# runtime, equal behaviour of the backends, restarts and messages.
#
# Test the Docker, Podman and Daytona backends; `--full` adds every scenario and attack
engines size="--quick" *args:
    @{{ready}}
    @scripts/steps engines 'scripts/with-engines {{real}} BELLGLASS_RUNTIMES=docker,podman,daytona {{tests}} engines {{needs_root}} \
            -E "binary(=real) and test(/^(engine|laws{{ if size == "--full" { "|exec|output|limits|lifecycle|terminal_inside" } else { "" } }})::/)" {{args}}' \
        attacks 'scripts/with-engines {{real}} BELLGLASS_RUNTIMES=docker,podman{{ if size == "--full" { ",daytona" } else { "" } }} {{tests}} attacks --test-threads 1 {{needs_root}} \
            -E "binary(=attacks) and test(/^sandbox::{{ if size == "--full" { "" } else { "neighbour::" } }}/)"'

# `just sdk` checks format, lints and types, and runs the SDK's test suite.
#
# Check the Python SDK and test it on a real server; `just sdk -m thousand` runs the large test
sdk *args:
    @{{ready}}
    @scripts/steps sdk 'scripts/python sdk/python sh -c "ruff check . && ruff format --check . && mypy && pyright && {{pytest}} {{args}}"'

# `just compat` tests MCP's official clients, E2B's SDKs, the cookbook's agents with the OpenAI, Anthropic and LangChain packages,
# clients that generators write from docs/openapi.json, and the first steps of a new user.
#
# Test unmodified third-party clients; `--quick` tests only the newest release of each E2B SDK
compat *args:
    @{{ready}}
    @scripts/steps compat 'scripts/with-engines --docker scripts/python compat env {{ if args == "--quick" { "BELLGLASS_E2B=newest " } else { "" } }}{{pytest}} {{ if args == "--quick" { "" } else { args } }}'

# `just attacks --quick` runs all attacks on runc. On gVisor, it runs only the attacks on the sandbox itself.
#
# Run every attack of attacks/ and its control; with `--quick`, in smaller sizes
attacks *args:
    @{{ready}}
    @scripts/steps {{ if args == "--quick" { \
        "containers '" + real + " BELLGLASS_RUNTIMES=runc " + tests + " attacks " + needs_root + " -E \"binary(=attacks)\"' " + \
        "gvisor '" + real + " BELLGLASS_RUNTIMES=runsc " + tests + " attacks " + needs_root + " -E \"binary(=attacks) and test(/^sandbox::/)\"'" } else { \
        "attacks '" + real + " BELLGLASS_FULL=1 " + tests + " attacks " + needs_root + " -E \"binary(=attacks)\" " + args + "'" } }}

# A switch that no attack notices is a defence without a test. The recipe starts Docker and Podman, and writes docs/defences.md.
#
# Turn off each defence in turn, and check that an attack notices; `just mutants H-30` turns off only that of H-30
mutants *args:
    @{{ready}}
    @{{sudo}}scripts/steps mutants 'scripts/with-engines env {{binary}} scripts/mutants {{args}}'

# Build every image of images/ from scratch and check it; `just images interpreter` builds only the image `interpreter`
images names="base,python,node,analysis,interpreter":
    @scripts/steps images '{{real}} BELLGLASS_IMAGES={{names}} {{tests}} real {{needs_root}} -E "binary(=images)"'

# Measure the times and sizes in the specification, and compare them with those of bare processes, bwrap and plain runc
figures *args:
    @{{build}} {{measured}}
    @{{sudo}}env BELLGLASS_BINARY={{target}}/{{measured}}/bellglass {{target}}/{{measured}}/figures {{args}}

# Run the benchmark that compares whole systems (see bench/README.md); `--quick` for a short run
bench *args:
    @{{build}} {{measured}}
    @engines=; docker version >/dev/null 2>&1 || ! command -v dockerd >/dev/null || engines=scripts/with-engines; \
        {{sudo}}$engines env BELLGLASS_BINARY={{target}}/{{measured}}/bellglass {{target}}/{{measured}}/bench {{args}}

# The soak tests kill servers repeatedly, start and stop many sandboxes, fork thousands of times, and transfer large files.
#
# Run the soak tests at full size; `just soak kills=50 cycles=100` runs fewer kills and cycles
soak *sizes:
    @{{build}} release
    @env kills=200 cycles=1000 runs=10000 bytes=5368709120 files=100000 {{sizes}} scripts/steps \
        kills 'env {{release}} BELLGLASS_KILLS=$kills {{soaked}}service::/)"' \
        cycles 'env {{release}} BELLGLASS_CYCLES=$cycles {{soaked}}cycles::/)"' \
        runs 'env {{release}} BELLGLASS_RUNS=$runs {{soaked}}many_runs::/)"' \
        sharing 'env {{release}} BELLGLASS_CROWD=$cycles {{soaked}}sharing::/)"' \
        files 'env {{release}} BELLGLASS_TRANSFER_BYTES=$bytes BELLGLASS_ARCHIVE_FILES=$files {{soaked}}files::/)"'

# `just fuzz seconds=900 egress::` runs the targets of one crate for 15 minutes each.
#
# Run every fuzz target under libFuzzer for a minute, two at a time
fuzz *args:
    @scripts/steps fuzz 'scripts/fuzz {{args}}'

# Measure the line coverage of the tests and write docs/coverage.md; `--quick` leaves out the tests of real sandboxes
coverage *args:
    @{{ready}}
    @scripts/steps coverage '{{as_root}} scripts/coverage {{args}}'

# Execute the README's commands literally, in a fresh Debian
first-minute *args:
    @scripts/steps first-minute 'scripts/first-minute.sh {{args}}'

# Run the tests of runtimes, limits and pauses on cgroup version 2, with Debian's kernel in QEMU; `--quick` runs four of them
v2 *args:
    @scripts/steps v2 'scripts/v2.sh {{args}}'

# Run the systemd unit under a real systemd, with restarts and a reboot of the machine, on cgroup version 2 in QEMU
systemd *args:
    @{{ready}}
    @{{sudo}}scripts/steps systemd 'env {{binary}} scripts/systemd {{args}}'

# Build an older release from its commit, and test upgrades from it and rollbacks to it under load
upgrade *args:
    @{{ready}}
    @scripts/steps upgrade '{{real}} BELLGLASS_RUNTIMES=runc scripts/upgrade {{args}}'

# The recipe runs for hours. It records each result in docs/evidence.json and writes docs/evidence.md. A recipe that already passed at
# this commit is not run again, so an interrupted run continues where it stopped.
#
# Run every recipe at full size; `just nightly soak v2` runs only some of them
nightly *args:
    @scripts/nightly {{args}}

# Build the executable that is shipped, and check its size and that it has no switch for tests
shipped *args:
    @scripts/shipped {{args}}

# Build only the guest, for inspection; the guest inside `bellglass` is built by the build script of `host`
guest:
    cargo build --profile guest -p guest --target {{arch()}}-unknown-linux-musl --locked
