package policies

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Caps on one command of a task (attack case G14). How many a task may hold is
// protocol.MaxRequiredCommands.
const (
	MaxCommandBytes = 2048
	MaxCommandWords = 128
)

// ErrUnsafeCommand is wrapped by every error about a command that is not one of
// the known test runners, or that only a shell could run.
var ErrUnsafeCommand = errors.New("not one of the allowed commands")

// ParseValidation returns the arguments of a funded or detected test command.
// No shell ever sees it. The first is a name to be found in the image; "python"
// stands for the image's interpreter. What it returns may run in a sandbox
// only: a test runner runs whatever its arguments and the repository say.
func ParseValidation(command string) ([]string, error) {
	args, err := parseCommand(command)
	if err != nil {
		return nil, err
	}
	if !isTestRunner(args) {
		return nil, fmt.Errorf("command %q: %w", command, ErrUnsafeCommand)
	}
	return args, nil
}

// ParseValidations parses a task's whole list of at most limit commands.
func ParseValidations(commands []string, limit int) ([][]string, error) {
	if len(commands) > limit {
		return nil, fmt.Errorf("%d commands, at most %d: %w", len(commands), limit, ErrUnsafeCommand)
	}
	parsed := make([][]string, 0, len(commands))
	for _, command := range commands {
		args, err := ParseValidation(command)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, args)
	}
	return parsed, nil
}

// ParsePreparation returns the arguments of a set-up command: an installer in
// its usual form, or a test runner that also builds what it needs.
func ParsePreparation(command string) ([]string, error) {
	args, err := parseCommand(command)
	if err != nil {
		return nil, err
	}
	if !isInstaller(args) && (ownInstaller(args[0]) || !isTestRunner(args)) {
		return nil, fmt.Errorf("command %q: %w", command, ErrUnsafeCommand)
	}
	return args, nil
}

// parseCommand splits a command and names its program as the image does.
func parseCommand(command string) ([]string, error) {
	if len(command) > MaxCommandBytes || !validText(command) {
		return nil, fmt.Errorf("command of %d bytes: %w", len(command), ErrUnsafeCommand)
	}
	words, err := splitWords(strings.Trim(command, shlexSpace))
	if err != nil {
		return nil, fmt.Errorf("command %q: %w: %w", command, ErrUnsafeCommand, err)
	}
	if len(words) == 0 || len(words) > MaxCommandWords {
		return nil, fmt.Errorf("command of %d words: %w", len(words), ErrUnsafeCommand)
	}
	args := make([]string, 0, len(words)+2)
	for _, w := range words {
		if w.operator {
			return nil, fmt.Errorf("command %q needs a shell: %w", command, ErrUnsafeCommand)
		}
		args = append(args, w.text)
	}
	return nameProgram(args), nil
}

// nameProgram replaces the many names of Python and pytest by the image's one.
// A path before them is dropped: it would name a file of the repository.
func nameProgram(args []string) []string {
	switch path.Base(args[0]) {
	case "pytest":
		return append([]string{"python", "-m", "pytest"}, args[1:]...)
	case "python", "python3":
		return append([]string{"python"}, args[1:]...)
	}
	return args
}

// testRunners are the beginnings of the allowed commands (protocol section 6).
// More arguments may follow each.
var testRunners = [][]string{
	{"python", "-m", "pytest"},
	{"python", "-m", "unittest"},
	{"python", "manage.py", "test"},
	{"node", "--test"},
	{"npm", "test"},
	{"pnpm", "test"},
	{"yarn", "test"},
	{"npx", "--no-install", "hardhat", "test"},
	{"cargo", "test"},
	{"go", "test"},
	{"mvn", "test"},
	{"./mvnw", "test"},
	{"gradle", "test"},
	{"./gradlew", "test"},
	{"php", "vendor/bin/phpunit"},
	{"composer", "test"},
	{"bundle", "exec", "rake", "test"},
	{"bundle", "exec", "rspec"},
	{"forge", "test"},
}

func isTestRunner(args []string) bool {
	if slices.ContainsFunc(testRunners, func(start []string) bool { return startsWith(args, start) }) {
		return true
	}
	// "run" needs a script's name; an option in its place could be anything.
	return len(args) >= 3 && slices.Contains([]string{"npm", "pnpm", "yarn"}, args[0]) &&
		args[1] == "run" && args[2] != "" && !strings.HasPrefix(args[2], "-")
}

// installers are the set-up commands, each with the options that may follow.
var installers = []struct{ command, options []string }{
	{[]string{"npm", "ci"}, nil},
	{[]string{"npm", "install"}, []string{"--no-package-lock"}},
	{[]string{"pnpm", "install"}, []string{"--frozen-lockfile"}},
	{[]string{"yarn", "install"}, []string{"--immutable", "--frozen-lockfile"}},
	{[]string{"cargo", "fetch"}, []string{"--locked"}},
	{[]string{"go", "mod", "download"}, nil},
	{[]string{"composer", "install"}, []string{"--no-interaction", "--prefer-dist"}},
	{[]string{"bundle", "install"}, nil},
}

func isInstaller(args []string) bool {
	for _, in := range installers {
		if !startsWith(args, in.command) {
			continue
		}
		return !slices.ContainsFunc(args[len(in.command):], func(option string) bool {
			return !slices.Contains(in.options, option)
		})
	}
	return false
}

// ownInstaller names the programs whose set-up is a command of its own, so that
// their test commands are no set-up.
func ownInstaller(program string) bool {
	return slices.Contains([]string{"cargo", "go", "composer", "bundle"}, program)
}

func startsWith(args, start []string) bool {
	return len(args) >= len(start) && slices.Equal(args[:len(start)], start)
}
