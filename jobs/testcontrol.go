package jobs

import (
	"path"
	"slices"
)

// testControls are files that change what a test run means without being
// tests: a run that plants one has to be told.
var testControls = []string{
	"conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "sitecustomize.py", "usercustomize.py", ".coveragerc",
	"jest.config.js", ".mocharc.json", "phpunit.xml", "phpunit.xml.dist", ".rspec", "surefire.properties",
}

func isTestControl(p string) bool { return slices.Contains(testControls, path.Base(p)) }
