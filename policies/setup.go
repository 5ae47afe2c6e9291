package policies

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// SetUp says what a repository needs before its tests can run.
type SetUp struct {
	// Needed says whether something has to be fetched from a registry.
	Needed bool
	// Command is what evidence calls the set-up (protocol section 6): the usual
	// installer's text, or "" when nothing is needed.
	Command string
}

// SetUpOf returns the set-up of a repository under a toolchain. A manifest that
// can't be read wraps ErrManifest. An unknown toolchain counts as needing
// something: to skip what is needed would blame the project's tests.
func SetUpOf(toolchain Toolchain, tree Tree) (SetUp, error) {
	d := newDetector(tree)
	needed, err := d.needs(toolchain)
	if err != nil || !needed {
		return SetUp{}, err
	}
	return SetUp{Needed: true, Command: d.setUpCommand(toolchain)}, nil
}

func (d *detector) needs(toolchain Toolchain) (bool, error) {
	switch toolchain {
	case Python:
		return d.pythonNeeds()
	case Node:
		return d.nodeNeeds()
	case Rust:
		return d.rustNeeds()
	case Go:
		return d.goNeeds()
	case PHP:
		return d.phpNeeds()
	case Foundry:
		return false, nil
	}
	// Maven and Gradle fetch even their test runner; Ruby's and Hardhat's
	// manifests are programs, which can't be asked without running them.
	return true, nil
}

func (d *detector) setUpCommand(toolchain Toolchain) string {
	switch toolchain {
	case Python:
		if d.has("requirements.txt") {
			return "pip install -r requirements.txt"
		}
		return "pip install .[test]"
	case Node, Hardhat:
		return d.nodeCommand()
	case Rust:
		if d.has("Cargo.lock") {
			return "cargo fetch --locked"
		}
		return "cargo fetch"
	case Go:
		return "go mod download"
	case PHP:
		return "composer install --no-interaction --prefer-dist"
	case Ruby:
		return "bundle install"
	}
	return ""
}

func (d *detector) nodeCommand() string {
	switch {
	case d.has("pnpm-lock.yaml"):
		return "pnpm install --frozen-lockfile"
	case d.has("yarn.lock"):
		return "yarn install --immutable"
	case d.has("package-lock.json", "npm-shrinkwrap.json"):
		return "npm ci"
	}
	return "npm install --no-package-lock"
}

// pythonNeeds: a requirement line in requirements.txt, or a pyproject with
// dependencies, a "test" extra or dependencies that only its build can tell.
// The build system doesn't count, as the project itself isn't installed.
func (d *detector) pythonNeeds() (bool, error) {
	if d.has("requirements.txt") {
		text, err := d.manifest("requirements.txt")
		if err != nil {
			return false, err
		}
		if hasRequirement(text) {
			return true, nil
		}
	}
	if !d.has("pyproject.toml") {
		return false, nil
	}
	text, err := d.manifest("pyproject.toml")
	if err != nil {
		return false, err
	}
	return pyprojectNeeds(text)
}

// pyproject holds the parts of pyproject.toml that name dependencies.
type pyproject struct {
	Project struct {
		Dependencies []any            `toml:"dependencies"`
		Optional     map[string][]any `toml:"optional-dependencies"`
		Dynamic      []string         `toml:"dynamic"`
	} `toml:"project"`
	Tool struct {
		Poetry struct {
			Dependencies map[string]any `toml:"dependencies"`
		} `toml:"poetry"`
	} `toml:"tool"`
}

func pyprojectNeeds(text []byte) (bool, error) {
	var p pyproject
	if err := decodeTOML("pyproject.toml", text, &p); err != nil {
		return false, err
	}
	for name := range p.Tool.Poetry.Dependencies {
		if name != "python" { // the interpreter is the image's
			return true, nil
		}
	}
	return len(p.Project.Dependencies) > 0 || len(p.Project.Optional["test"]) > 0 ||
		slices.Contains(p.Project.Dynamic, "dependencies") ||
		slices.Contains(p.Project.Dynamic, "optional-dependencies"), nil
}

// decodeTOML reads a stranger's TOML, or wraps ErrManifest.
func decodeTOML(name string, text []byte, v any) error {
	if !boundedTOML(text) {
		return fmt.Errorf("reading %s, nested too deeply: %w", name, ErrManifest)
	}
	if err := toml.Unmarshal(text, v); err != nil {
		return fmt.Errorf("reading %s: %w", name, ErrManifest)
	}
	return nil
}

// hasRequirement says whether a requirements file asks for anything: a line
// that is no comment and no option that only says where to look.
func hasRequirement(text []byte) bool {
	for line := range bytes.Lines(text) {
		word, _, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(string(line), "\uFEFF")), " ")
		option, _, _ := strings.Cut(word, "=")
		switch {
		case word == "" || word == `\` || strings.HasPrefix(word, "#"), slices.Contains(searchOptions, option):
		default:
			return true
		}
	}
	return false
}

// searchOptions are the options of a requirements file that name no package.
var searchOptions = []string{
	"-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links",
	"--no-binary", "--only-binary", "--prefer-binary", "--require-hashes", "--pre",
	"--trusted-host", "--use-feature", "-c", "--constraint",
}

func (d *detector) nodeNeeds() (bool, error) {
	var m packageJSON
	if err := d.manifestJSON("package.json", &m); err != nil {
		return false, err
	}
	return len(m.Dependencies)+len(m.DevDependencies)+len(m.Optional)+len(m.Peer) > 0 || m.Workspaces != nil, nil
}

// rustNeeds asks all the tables in which Cargo.toml may name crates. A
// workspace's members have manifests of their own, so it counts as needing.
func (d *detector) rustNeeds() (bool, error) {
	text, err := d.manifest("Cargo.toml")
	if err != nil {
		return false, err
	}
	var m map[string]any
	if err := decodeTOML("Cargo.toml", text, &m); err != nil {
		return false, err
	}
	for _, key := range []string{"dependencies", "dev-dependencies", "build-dependencies", "target", "workspace"} {
		if table, ok := m[key].(map[string]any); ok && len(table) > 0 {
			return true, nil
		}
	}
	return false, nil
}

func (d *detector) goNeeds() (bool, error) {
	text, err := d.manifest("go.mod")
	if err != nil {
		return false, err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, MaxManifestBytes+1)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 && strings.HasPrefix(fields[0], "require") {
			return true, nil
		}
	}
	return false, nil
}

// phpNeeds ignores what composer calls platform packages: the interpreter and
// its extensions.
func (d *detector) phpNeeds() (bool, error) {
	var m struct {
		Require    looseMap `json:"require"`
		RequireDev looseMap `json:"require-dev"`
	}
	if err := d.manifestJSON("composer.json", &m); err != nil {
		return false, err
	}
	for _, packages := range []looseMap{m.Require, m.RequireDev} {
		for name := range packages {
			if strings.Contains(name, "/") {
				return true, nil
			}
		}
	}
	return false, nil
}
