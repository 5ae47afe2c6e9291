package policies

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Toolchain names the language tools that a command needs, as images are named
// by them, for example "python".
type Toolchain string

// The toolchains that detection knows.
const (
	Python  Toolchain = "python"
	Node    Toolchain = "node"
	Rust    Toolchain = "rust"
	Go      Toolchain = "go"
	Maven   Toolchain = "maven"
	Gradle  Toolchain = "gradle"
	PHP     Toolchain = "php"
	Ruby    Toolchain = "ruby"
	Foundry Toolchain = "foundry"
	Hardhat Toolchain = "hardhat"
)

// The sources of a plan: the wire's validation_command_source.
const (
	SourceFunded   = "funded_policy"
	SourceDetected = "repository_detection"
)

// Errors of Detect, Needs and SetUp.
var (
	ErrAmbiguous   = errors.New("more than one toolchain matches")
	ErrUnsupported = errors.New("no supported toolchain with tests")
	ErrManifest    = errors.New("project manifest cannot be read")
)

// MaxManifestBytes is how much of a manifest is ever read. Trees should give no
// more than one byte above it.
const MaxManifestBytes = 1 << 20

// Tree is a repository as detection sees it: names and small files, never the
// host's file system. Paths are relative, with "/".
type Tree interface {
	// Paths returns the paths of all files.
	Paths() []string
	// Read returns a file's content, or false when the file isn't there or is
	// no regular file.
	Read(path string) ([]byte, bool)
}

// Plan is how a repository is tested.
type Plan struct {
	Toolchain Toolchain
	Commands  []string
	Source    string
}

// detector asks one tree; it indexes the names once.
type detector struct {
	tree  Tree
	paths []string
	names map[string]bool
}

func newDetector(tree Tree) *detector {
	d := &detector{tree: tree, paths: tree.Paths(), names: map[string]bool{}}
	for _, p := range d.paths {
		d.names[p] = true
	}
	return d
}

// Detect returns the plan of a repository whose task funds no command: exactly
// one toolchain must match. Errors wrap ErrAmbiguous, ErrUnsupported or
// ErrManifest.
func Detect(tree Tree) (Plan, error) {
	d := newDetector(tree)
	detections := []func() (Toolchain, string, error){
		d.python, d.node, d.rust, d.golang, d.maven, d.gradle, d.php, d.ruby, d.foundry,
	}
	var plans []Plan
	for _, detect := range detections {
		toolchain, command, err := detect()
		if err != nil {
			return Plan{}, err
		}
		if command != "" {
			plans = append(plans, Plan{toolchain, []string{command}, SourceDetected})
		}
	}
	switch len(plans) {
	case 0:
		return Plan{}, fmt.Errorf("detecting the toolchain: %w", ErrUnsupported)
	case 1:
		return plans[0], nil
	}
	return Plan{}, fmt.Errorf("detecting the toolchain, %s and %s: %w", plans[0].Toolchain, plans[1].Toolchain, ErrAmbiguous)
}

// FundedPlan returns the plan of a task that funds its commands, already
// parsed. The toolchain is the first command's.
func FundedPlan(commands []string, parsed [][]string) Plan {
	plan := Plan{Commands: slices.Clone(commands), Source: SourceFunded}
	if len(parsed) > 0 {
		plan.Toolchain = ToolchainOf(parsed[0])
	}
	return plan
}

var programs = map[string]Toolchain{
	"python": Python, "node": Node, "npm": Node, "pnpm": Node, "yarn": Node, "npx": Hardhat,
	"cargo": Rust, "go": Go, "mvn": Maven, "./mvnw": Maven, "gradle": Gradle, "./gradlew": Gradle,
	"php": PHP, "composer": PHP, "bundle": Ruby, "forge": Foundry,
}

// ToolchainOf returns the toolchain that the arguments of a validation command
// need, or "" for arguments that ParseValidation didn't make.
func ToolchainOf(args []string) Toolchain {
	if len(args) == 0 {
		return ""
	}
	return programs[args[0]]
}

func (d *detector) has(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return d.names[name] })
}

// hasTest says whether a file with a test's name lies below the directory.
func (d *detector) hasTest(dir string, patterns ...string) bool {
	return slices.ContainsFunc(d.paths, func(p string) bool {
		return strings.HasPrefix(p, dir+"/") && slices.ContainsFunc(patterns, func(pattern string) bool {
			ok, err := path.Match(pattern, path.Base(p))
			return ok && err == nil
		})
	})
}

// mentions says whether a file of readable size holds the text.
func (d *detector) mentions(name, text string) bool {
	if !d.has(name) {
		return false
	}
	content, err := d.manifest(name)
	return err == nil && strings.Contains(string(content), text)
}

// python prefers pytest when anything shows that the project does.
func (d *detector) python() (Toolchain, string, error) {
	switch {
	case d.has("pytest.ini", ".pytest.ini", "conftest.py", "tests/conftest.py"),
		d.hasTest("tests", "test_*.py", "*_test.py"), d.hasTest("test", "test_*.py", "*_test.py"),
		d.mentions("pyproject.toml", "[tool.pytest"), d.mentions("setup.cfg", "[tool:pytest]"),
		d.mentions("tox.ini", "[pytest]"):
		return Python, "python -m pytest -q", nil
	case !d.has("pyproject.toml", "requirements.txt", "setup.py", "setup.cfg"):
		return Python, "", nil
	}
	return Python, "python -m unittest discover -v", nil
}

// packageJSON is what detection and set-up need of package.json.
type packageJSON struct {
	Scripts         looseMap `json:"scripts"`
	Dependencies    looseMap `json:"dependencies"`
	DevDependencies looseMap `json:"devDependencies"`
	Optional        looseMap `json:"optionalDependencies"`
	Peer            looseMap `json:"peerDependencies"`
	Workspaces      any      `json:"workspaces"`
}

// looseMap is an object, or nothing where a manifest has something else.
type looseMap map[string]any

// UnmarshalJSON takes any value and keeps objects only.
func (m *looseMap) UnmarshalJSON(text []byte) error {
	var object map[string]any
	if json.Unmarshal(text, &object) == nil {
		*m = object
	}
	return nil
}

// testScript returns the script's text; npm's placeholder is no test.
func (m looseMap) testScript() string {
	text, _ := m["test"].(string)
	if strings.Contains(text, "no test specified") {
		return ""
	}
	return text
}

// manifestJSON reads a JSON manifest into v: an object, or ErrManifest.
func (d *detector) manifestJSON(name string, v any) error {
	text, err := d.manifest(name)
	if err != nil {
		return err
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return fmt.Errorf("reading %s: %w", name, ErrManifest)
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("reading %s: %w", name, ErrManifest)
	}
	return nil
}

// manifest reads a manifest of bounded size.
func (d *detector) manifest(name string) ([]byte, error) {
	text, found := d.tree.Read(name)
	if !found || len(text) > MaxManifestBytes {
		return nil, fmt.Errorf("reading %s: %w", name, ErrManifest)
	}
	return text, nil
}

func (d *detector) node() (Toolchain, string, error) {
	if !d.has("package.json") {
		return Node, "", nil
	}
	var manifest packageJSON
	if err := d.manifestJSON("package.json", &manifest); err != nil {
		return Node, "", err
	}
	switch {
	case d.has("hardhat.config.js", "hardhat.config.ts", "hardhat.config.cjs", "hardhat.config.mjs"):
		return Hardhat, "npx --no-install hardhat test", nil
	case manifest.Scripts.testScript() == "":
		return Node, "", nil
	case d.has("pnpm-lock.yaml"):
		return Node, "pnpm test", nil
	case d.has("yarn.lock"):
		return Node, "yarn test", nil
	}
	return Node, "npm test", nil
}

func (d *detector) rust() (Toolchain, string, error) {
	return Rust, when(d.has("Cargo.toml"), "cargo test --quiet"), nil
}

func (d *detector) golang() (Toolchain, string, error) {
	return Go, when(d.has("go.mod"), "go test ./..."), nil
}

func (d *detector) maven() (Toolchain, string, error) {
	if d.has("mvnw") {
		return Maven, when(d.has("pom.xml"), "./mvnw test"), nil
	}
	return Maven, when(d.has("pom.xml"), "mvn test"), nil
}

func (d *detector) gradle() (Toolchain, string, error) {
	built := d.has("build.gradle", "build.gradle.kts")
	if d.has("gradlew") {
		return Gradle, when(built, "./gradlew test"), nil
	}
	return Gradle, when(built, "gradle test"), nil
}

func (d *detector) php() (Toolchain, string, error) {
	if !d.has("composer.json") {
		return PHP, "", nil
	}
	var manifest struct {
		Scripts looseMap `json:"scripts"`
	}
	if err := d.manifestJSON("composer.json", &manifest); err != nil {
		return PHP, "", err
	}
	if _, found := manifest.Scripts["test"]; found {
		return PHP, "composer test", nil
	}
	return PHP, when(d.has("phpunit.xml", "phpunit.xml.dist"), "php vendor/bin/phpunit"), nil
}

func (d *detector) ruby() (Toolchain, string, error) {
	switch {
	case !d.has("Gemfile"):
		return Ruby, "", nil
	case d.has(".rspec"), d.hasTest("spec", "*_spec.rb"):
		return Ruby, "bundle exec rspec", nil
	}
	return Ruby, when(d.has("Rakefile"), "bundle exec rake test"), nil
}

func (d *detector) foundry() (Toolchain, string, error) {
	return Foundry, when(d.has("foundry.toml"), "forge test -q"), nil
}

func when(holds bool, command string) string {
	if holds {
		return command
	}
	return ""
}
