package policies_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/veyra-labs/veyra-sandboxd/policies"
	"github.com/veyra-labs/veyra-sandboxd/protocol"
)

// TestG14RefusesWhatOnlyAShellWouldRun goes beyond the recorded vectors.
func TestG14RefusesWhatOnlyAShellWouldRun(t *testing.T) {
	for _, command := range []string{
		"pytest $(curl x)", "pytest `id`", `pytest "$(id)"`, "pytest \"`id`\"", "pytest ${IFS}x", "pytest\nls", "pytest \n ls", "pytest & ls",
		"pytest <x", "pytest 2>&1", "pytest || true", "pytest (x)", "pytest\x00", "pytest \xff", "(pytest)", "pytest\\",
		"npm run", "npm run -s", "npm run ''", "npm exec x", "npx --no-install x", "npx --yes hardhat test", "python -m pip install x",
		"python -m http.server", "python -mpytest", "python pytest", "go", "go vet", "cargo", "./x/mvnw test", "mvnw test",
		"sh", "env pytest", "sudo pytest", "/usr/bin/env python -m pytest", "node --test-only x", "deno test", "'' pytest",
		"pytest " + strings.Repeat("a ", policies.MaxCommandWords), "pytest " + strings.Repeat("a", policies.MaxCommandBytes),
	} {
		if args, err := policies.ParseValidation(command); !errors.Is(err, policies.ErrUnsafeCommand) {
			t.Errorf("%.60q = %q, %v", command, args, err)
		}
	}
}

func TestParseValidationKeepsHarmlessCharacters(t *testing.T) {
	for command, want := range map[string][]string{
		`go test -run 'A|B' ./...`:        {"go", "test", "-run", "A|B", "./..."},
		`go test -run "^TestA$" ./...`:    {"go", "test", "-run", "^TestA$", "./..."},
		`pytest -k 'a and (b or $(c))'`:   {"python", "-m", "pytest", "-k", "a and (b or $(c))"},
		`pytest "a;b"`:                    {"python", "-m", "pytest", "a;b"},
		`pytest a\;b ''`:                  {"python", "-m", "pytest", "a;b", ""},
		"  pytest -q\n":                   {"python", "-m", "pytest", "-q"},
		"pytest tests/*.py #x":            {"python", "-m", "pytest", "tests/*.py", "#x"},
		"/opt/venv/bin/python3 -m pytest": {"python", "-m", "pytest"},
	} {
		got, err := policies.ParseValidation(command)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q = %q, %v; want %q", command, got, err, want)
		}
	}
}

func TestParseValidationsCapsTheCount(t *testing.T) {
	ok := slices.Repeat([]string{"pytest"}, protocol.MaxRequiredCommands)
	got, err := policies.ParseValidations(ok, protocol.MaxRequiredCommands)
	if err != nil || len(got) != protocol.MaxRequiredCommands {
		t.Errorf("%d commands: %q, %v", len(ok), got, err)
	}
	for _, commands := range [][]string{slices.Repeat([]string{"pytest"}, 5000), {"pytest", ""}, {"pytest", "ls"}} {
		if _, err := policies.ParseValidations(commands, protocol.MaxRequiredCommands); !errors.Is(err, policies.ErrUnsafeCommand) {
			t.Errorf("%d commands: %v", len(commands), err)
		}
	}
}

func TestParsePreparationTakesKnownOptionsOnly(t *testing.T) {
	for _, command := range []string{
		"npm install --no-package-lock", "pnpm install --frozen-lockfile", "yarn install --immutable", "yarn install",
		"composer install",
	} {
		if _, err := policies.ParsePreparation(command); err != nil {
			t.Errorf("%q: %v", command, err)
		}
	}
	for _, command := range []string{
		"npm install left-pad", "npm ci --registry=x", "composer install --working-dir=/x", "bundle install --path x",
		"go mod download x", "cargo fetch --manifest-path x", "go mod tidy", "npm ci; ls",
	} {
		if args, err := policies.ParsePreparation(command); !errors.Is(err, policies.ErrUnsafeCommand) {
			t.Errorf("%q = %q, %v", command, args, err)
		}
	}
}

func TestToolchainOfEveryRunner(t *testing.T) {
	want := map[string]policies.Toolchain{
		"pytest": policies.Python, "python manage.py test": policies.Python, "node --test": policies.Node, "npm test": policies.Node,
		"pnpm run x": policies.Node, "yarn test": policies.Node, "npx --no-install hardhat test": policies.Hardhat,
		"cargo test": policies.Rust, "go test": policies.Go, "mvn test": policies.Maven, "./mvnw test": policies.Maven,
		"gradle test": policies.Gradle, "./gradlew test": policies.Gradle, "php vendor/bin/phpunit": policies.PHP,
		"composer test": policies.PHP, "bundle exec rspec": policies.Ruby, "bundle exec rake test": policies.Ruby,
		"forge test": policies.Foundry,
	}
	got := map[string]policies.Toolchain{}
	for command := range want {
		args, err := policies.ParseValidation(command)
		if err != nil {
			t.Errorf("%q: %v", command, err)
		}
		got[command] = policies.ToolchainOf(args)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := policies.ToolchainOf(nil); got != "" {
		t.Errorf("no arguments: %q", got)
	}
	plan := policies.FundedPlan([]string{"go test"}, [][]string{{"go", "test"}})
	if plan.Toolchain != policies.Go || plan.Source != policies.SourceFunded {
		t.Errorf("funded: %+v", plan)
	}
}
