package main

import (
	"embed"
	"io/fs"
	"strings"
)

// The sample is a small Python project whose tests fail in one criterion of
// each kind: an edit, a new file, a deletion and an executable bit. "all:" takes
// the files that begin with an underscore as well.
//
//go:embed all:sample
var sampleFiles embed.FS

// sampleExecutable is the sample's script; embedding keeps no modes.
const sampleExecutable = "scripts/check.sh"

const sampleCommand = "python3 -m unittest discover -v"

// sampleOrder is the job that is placed when nothing else is said.
func sampleOrder() order {
	return order{
		Title:       "Make the calc tests pass",
		Description: "The sums are wrong, one module is missing, one is left over, and one script can't be run.",
		Criteria: []string{
			"calc.ops.add returns the sum of its arguments",
			"calc.scale.scale multiplies each number of a list",
			"calc/legacy.py is gone",
			"scripts/show.sh is executable and prints a sum",
		},
		Files: sampleTree(), Commands: []string{sampleCommand}, Repairs: 1,
		ForbiddenPaths: []string{"tests/*"},
		Steps:          sampleSteps(),
	}
}

func sampleTree() map[string]orderFile {
	files := map[string]orderFile{}
	_ = fs.WalkDir(sampleFiles, "sample", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := sampleFiles.ReadFile(path)
		name := strings.TrimPrefix(path, "sample/")
		files[name] = orderFile{Content: string(content), Exec: name == sampleExecutable}
		return err
	})
	return files
}

// sampleSteps is how a careful worker goes about it.
func sampleSteps() []orderStep {
	edit := func(path, old, text string) orderStep {
		s := orderStep{}
		s.Edit = &struct {
			Path string `json:"path"`
			Old  string `json:"old"`
			New  string `json:"new"`
		}{path, old, text}
		return s
	}
	return []orderStep{
		{Shell: "ls -R"},
		{Shell: "cat calc/ops.py tests/test_calc.py"},
		edit("calc/ops.py", "return a - b", "return a + b"),
		edit("calc/scale.py", "", "\"\"\"Scaling of lists.\"\"\"\n\n\ndef scale(numbers, factor):\n    return [number * factor for number in numbers]\n"),
		{Shell: "rm calc/legacy.py && chmod +x scripts/show.sh"},
		{Shell: sampleCommand},
		{Finish: "add() adds, scale() is there, the old module is gone, and the script can be run."},
	}
}

// withSample fills an order without files from the sample. An order that names
// no steps of its own does what the sample does.
func (o order) withSample() order {
	if len(o.Files) > 0 {
		if o.Title == "" {
			o.Title = "A small change"
		}
		return o
	}
	base := sampleOrder()
	base.Owner, base.Name, base.Minutes = o.Owner, o.Name, o.Minutes
	base.FailCriterion = o.FailCriterion
	base.AllowedPaths, base.AllowDependencies, base.AllowMigrations = o.AllowedPaths, o.AllowDependencies, o.AllowMigrations
	replace(&base.Title, o.Title)
	replace(&base.Description, o.Description)
	replaceList(&base.Requirements, o.Requirements)
	replaceList(&base.Criteria, o.Criteria)
	replaceList(&base.Commands, o.Commands)
	replaceList(&base.ForbiddenPaths, o.ForbiddenPaths)
	replaceList(&base.Steps, o.Steps)
	replaceList(&base.RepairSteps, o.RepairSteps)
	if o.Repairs > 0 {
		base.Repairs = o.Repairs
	}
	if o.Detected {
		base.Commands = nil
	}
	return base
}

func replace(field *string, value string) {
	if value != "" {
		*field = value
	}
}

func replaceList[T any](field *[]T, values []T) {
	if len(values) > 0 {
		*field = values
	}
}
