package jobs

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// testControls are files that change what a test run means without being
// tests: a run that plants one has to be told.
var testControls = []string{
	"conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "sitecustomize.py", "usercustomize.py", ".coveragerc",
	"phpunit.xml", "phpunit.xml.dist", "phpunit.dist.xml", ".rspec", "surefire.properties", ".pytest.ini", "pytest.toml", ".pytest.toml",
}

// testControlName matches the like of those in more than one language, what
// runs tests by being in the repository, and bytecode, which Python may run
// instead of the source that everybody reads.
var testControlName = regexp.MustCompile(`^(jest|vitest|ava|karma|cypress|playwright)\.conf(ig)?\.[a-z]+$|^\.mocharc\.[a-z]+$|^(mvnw|gradlew)(\.cmd|\.bat)?$|\.py[co]$`)

// testPlugin matches what makes pytest load a plugin from the workspace, as if
// it were installed.
var testPlugin = regexp.MustCompile(`(^|/)[^/]+\.(egg|dist)-info/entry_points\.txt$`)

// runners are packages that Python would take from the workspace instead of the
// runner of that name.
var runners = []string{"unittest", "pytest", "_pytest"}

// testSettings are files that may say how tests are run, beside much else. The
// change may need what else they say, so that a run with the base versions of
// them, too, decides only where there is no other (see review.go).
var testSettings = []string{
	"pyproject.toml", "package.json", "Makefile", "noxfile.py", "Rakefile", "composer.json", "Cargo.toml",
	"build.gradle", "build.gradle.kts", "pom.xml", "foundry.toml", "manage.py", "settings.gradle", "settings.gradle.kts",
	"gradle.properties", "go.work", "go.env", ".npmrc", ".yarnrc", ".yarnrc.yml", ".pnpmfile.cjs", "Gemfile",
}

// testSettingPath matches the like of those that only their directory tells, and
// runners that a repository holds among its dependencies.
var testSettingPath = regexp.MustCompile(`(^|/)(\.cargo/config(\.toml)?|\.mvn/.+|hardhat\.config\.[a-z]+|node_modules/.+|vendor/(bin|phpunit)/.+)$`)

// testDirs hold nothing but tests and what they need or compare with, by custom.
var testDirs = []string{"test", "tests", "spec", "specs", "__tests__", "__snapshots__", "testdata"}

// testName matches what the common runners take for a file of tests.
var testName = regexp.MustCompile(`^(test[_-].*|.*[._-](test|tests|spec)|.*(Test|Tests|TestCase|Spec)|test|tests)\.[A-Za-z0-9]+$|\.t\.sol$`)

// isTestPath tells whether a change of this path may change what the tests ask
// for, rather than what is tested.
func isTestPath(p string) bool {
	if isTestControl(p) || testName.MatchString(path.Base(p)) {
		return true
	}
	// The last part counts, too: a link in the place of a directory of tests.
	for part := range strings.SplitSeq(strings.ToLower(p), "/") {
		if slices.Contains(testDirs, part) || slices.Contains(runners, strings.TrimSuffix(part, ".py")) {
			return true
		}
	}
	return false
}

func isTestControl(p string) bool {
	return slices.Contains(testControls, path.Base(p)) || testControlName.MatchString(path.Base(p)) || testPlugin.MatchString(p)
}

func isTestSetting(p string) bool {
	return slices.Contains(testSettings, path.Base(p)) || testSettingPath.MatchString(p)
}
