package policies_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/veyra-labs/veyra-sandboxd/policies"
)

func TestPythonSetUp(t *testing.T) {
	requirements := policies.SetUp{Needed: true, Command: "pip install -r requirements.txt"}
	project := policies.SetUp{Needed: true, Command: "pip install .[test]"}
	for name, c := range map[string]struct {
		tree files
		want policies.SetUp
	}{
		"nothing":          {files{"a.py": ""}, policies.SetUp{}},
		"setup.py alone":   {files{"setup.py": "import setuptools"}, policies.SetUp{}},
		"empty":            {files{"requirements.txt": ""}, policies.SetUp{}},
		"comments":         {files{"requirements.txt": "# x\n\n  # y\r\n"}, policies.SetUp{}},
		"only an index":    {files{"requirements.txt": "--index-url https://x\n-i https://y\n--extra-index-url=z"}, policies.SetUp{}},
		"a requirement":    {files{"requirements.txt": "# x\nattrs==1 # y\n"}, requirements},
		"after a mark":     {files{"requirements.txt": "\uFEFFattrs"}, requirements},
		"another file":     {files{"requirements.txt": "-r base.txt"}, requirements},
		"project itself":   {files{"requirements.txt": "-e ."}, requirements},
		"bare project":     {files{"pyproject.toml": "[build-system]\nrequires=['x']\n[project]\nname='x'"}, policies.SetUp{}},
		"empty lists":      {files{"pyproject.toml": "[project]\ndependencies=[]\n[project.optional-dependencies]\ntest=[]\ndocs=['x']"}, policies.SetUp{}},
		"dependencies":     {files{"pyproject.toml": "[project]\ndependencies=['x']"}, project},
		"test extra":       {files{"pyproject.toml": "[project.optional-dependencies]\ntest=['x']"}, project},
		"dynamic":          {files{"pyproject.toml": "[project]\ndynamic=['version','dependencies']"}, project},
		"dynamic version":  {files{"pyproject.toml": "[project]\ndynamic=['version']"}, policies.SetUp{}},
		"poetry":           {files{"pyproject.toml": "[tool.poetry.dependencies]\npython='*'\nattrs='*'"}, project},
		"poetry, python":   {files{"pyproject.toml": "[tool.poetry.dependencies]\npython='*'"}, policies.SetUp{}},
		"other tool table": {files{"pyproject.toml": "[tool.x]\ny=1.5\nd=1979-05-27\n[[tool.z]]\n"}, policies.SetUp{}},
	} {
		got, err := policies.SetUpOf(policies.Python, c.tree)
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

func TestSetUpOfOtherToolchains(t *testing.T) {
	for name, c := range map[string]struct {
		toolchain policies.Toolchain
		tree      files
		want      string // the command, "" = nothing needed
	}{
		"npm, nothing":      {policies.Node, files{"package.json": `{"scripts":{"test":"node --test"},"dependencies":{}}`}, ""},
		"npm, lock":         {policies.Node, files{"package.json": `{"devDependencies":{"x":"1"}}`, "package-lock.json": ""}, "npm ci"},
		"npm, no lock":      {policies.Node, files{"package.json": `{"dependencies":{"x":"1"}}`}, "npm install --no-package-lock"},
		"pnpm":              {policies.Node, files{"package.json": `{"dependencies":{"x":"1"}}`, "pnpm-lock.yaml": ""}, "pnpm install --frozen-lockfile"},
		"yarn":              {policies.Node, files{"package.json": `{"workspaces":["a"]}`, "yarn.lock": ""}, "yarn install --immutable"},
		"cargo, nothing":    {policies.Rust, files{"Cargo.toml": "[package]\nname='x'\n[dependencies]\n"}, ""},
		"cargo":             {policies.Rust, files{"Cargo.toml": "[dev-dependencies]\nx='1'"}, "cargo fetch"},
		"cargo, lock":       {policies.Rust, files{"Cargo.toml": "[target.'cfg(unix)'.dependencies]\nx='1'", "Cargo.lock": ""}, "cargo fetch --locked"},
		"go, nothing":       {policies.Go, files{"go.mod": "module x\n\ngo 1.26\n"}, ""},
		"go":                {policies.Go, files{"go.mod": "module x\nrequire (\n\ty v1.0.0\n)\n"}, "go mod download"},
		"composer, nothing": {policies.PHP, files{"composer.json": `{"require":{"php":">=8","ext-json":"*"}}`}, ""},
		"composer":          {policies.PHP, files{"composer.json": `{"require-dev":{"a/b":"1"}}`}, "composer install --no-interaction --prefer-dist"},
		"bundler":           {policies.Ruby, files{"Gemfile": ""}, "bundle install"},
		"foundry":           {policies.Foundry, files{"foundry.toml": ""}, ""},
	} {
		got, err := policies.SetUpOf(c.toolchain, c.tree)
		if err != nil || got.Command != c.want || got.Needed != (c.want != "") {
			t.Errorf("%s: %+v, %v; want %q", name, got, err, c.want)
		}
		if c.want == "" {
			continue
		}
		if _, err := policies.ParsePreparation(got.Command); err != nil {
			t.Errorf("%s: the command is no set-up of ours: %v", name, err)
		}
	}
	for _, toolchain := range []policies.Toolchain{policies.Maven, policies.Gradle, policies.Hardhat, "unknown"} {
		if got, err := policies.SetUpOf(toolchain, files{}); err != nil || !got.Needed {
			t.Errorf("%s: %+v, %v", toolchain, got, err)
		}
	}
}

func TestManifestsThatCannotBeRead(t *testing.T) {
	deep := func(open string) string { return "a=" + strings.Repeat(open, 100_000) }
	large := strings.Repeat("#\n", policies.MaxManifestBytes/2+1)
	for name, c := range map[string]struct {
		toolchain policies.Toolchain
		tree      files
	}{
		"bad pyproject":      {policies.Python, files{"pyproject.toml": "[project"}},
		"wrong type":         {policies.Python, files{"pyproject.toml": "[project]\ndependencies='x'"}},
		"large pyproject":    {policies.Python, files{"pyproject.toml": large}},
		"large requirements": {policies.Python, files{"requirements.txt": large}},
		"deep lists":         {policies.Python, files{"pyproject.toml": deep("[")}},
		"deep tables":        {policies.Rust, files{"Cargo.toml": deep("{a=")}},
		"many dots":          {policies.Rust, files{"Cargo.toml": strings.Repeat("a.", 100_000) + "a=1"}},
		"bad cargo":          {policies.Rust, files{"Cargo.toml": "="}},
		"bad package":        {policies.Node, files{"package.json": "[]"}},
		"deep package":       {policies.Node, files{"package.json": strings.Repeat("[", 100_000)}},
		"bad composer":       {policies.PHP, files{"composer.json": "null"}},
		"no go.mod":          {policies.Go, files{}},
	} {
		if got, err := policies.SetUpOf(c.toolchain, c.tree); !errors.Is(err, policies.ErrManifest) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestDetectBeyondTheVectors(t *testing.T) {
	for name, c := range map[string]struct {
		tree files
		want string
	}{
		"tests of another language":   {files{"package.json": `{"scripts":{"test":"x"}}`, "tests/a.test.js": ""}, "npm test"},
		"npm's placeholder":           {files{"package.json": `{"scripts":{"test":"echo \"Error: no test specified\" && exit 1"}}`, "go.mod": ""}, "go test ./..."},
		"pytest by pyproject":         {files{"pyproject.toml": "[tool.pytest.ini_options]\n"}, "python -m pytest -q"},
		"pytest by setup.cfg":         {files{"setup.cfg": "[tool:pytest]\n"}, "python -m pytest -q"},
		"scripts of another type":     {files{"package.json": `{"scripts":[1]}`, "foundry.toml": ""}, "forge test -q"},
		"test script of another type": {files{"package.json": `{"scripts":{"test":[1]}}`, "go.mod": ""}, "go test ./..."},
		"rspec before rake":           {files{"Gemfile": "", "Rakefile": "", "spec/a_spec.rb": ""}, "bundle exec rspec"},
		"manifests below the root":    {files{"a/go.mod": "", "b/Cargo.toml": "", "setup.py": ""}, "python -m unittest discover -v"},
	} {
		got, err := policies.Detect(c.tree)
		if err != nil || !cmp.Equal(got.Commands, []string{c.want}) {
			t.Errorf("%s: %+v, %v; want %q", name, got, err, c.want)
		}
	}
	both := files{"package.json": `{"scripts":{"test":"x"}}`, "tests/test_a.py": ""}
	if got, err := policies.Detect(both); !errors.Is(err, policies.ErrAmbiguous) {
		t.Errorf("node and python: %+v, %v", got, err)
	}
}
