package policies

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestForbiddingCoversWhatAllowingDoes: for any rule and path, the forbidding
// reading of a rule that can be used covers at least the control plane's.
func TestForbiddingCoversWhatAllowingDoes(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab/*?[]!-. \\é\u0301ßK\u00a0")), 0, 12, -1)
	hits := 0
	rapid.Check(t, func(t *rapid.T) {
		// The path is made of the rule, or few rules would cover any.
		rule, more := text.Draw(t, "rule"), text.Draw(t, "more")
		clean := Casefold(cleanRule(rule))
		filled := strings.NewReplacer("**", more, "*", more, "?", "a").Replace(clean)
		for _, path := range []string{more, clean, filled, filled + "/" + more} {
			if !NewAllowRule(rule).Covers(path) || Deliverable(path) != nil {
				continue // what can't be delivered is a violation by itself
			}
			hits++
			forbid, err := NewForbidRule(rule)
			if err == nil && !forbid.Covers(path) {
				t.Fatalf("rule %q allows %q but doesn't forbid it", rule, path)
			}
		}
	})
	if hits < 50 {
		t.Errorf("rules covered a path %d times: the test says little", hits)
	}
}

func FuzzForbidRule(f *testing.F) {
	for _, seed := range []string{"src/**", "[a", "[!]-a]*", "../x", "*/**/*", "a\\b", " /x/ ", "\uff0a"} {
		f.Add(seed, "src/a.py")
	}
	f.Fuzz(func(t *testing.T, rule, path string) {
		forbid, err := NewForbidRule(rule)
		if err != nil {
			return
		}
		if NewAllowRule(rule).Covers(path) && Deliverable(path) == nil && !forbid.Covers(path) {
			t.Errorf("rule %q allows %q but doesn't forbid it", rule, path)
		}
	})
}

func FuzzNormalPath(f *testing.F) {
	for _, seed := range []string{"./a//b", "..", "C:/x", "a\\b", " a", "\x00", ".git/x", "a/./b/", "0 /", "./.env/x", "./C:/x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		normal, err := NormalPath(text)
		if err != nil {
			return
		}
		again, err := NormalPath(normal)
		if err != nil || again != normal {
			t.Errorf("%q gives %q, which gives %q, %v", text, normal, again, err)
		}
		for _, part := range strings.Split(normal, "/") {
			if part == "" || part == "." || part == ".." {
				t.Errorf("%q gives %q", text, normal)
			}
		}
		if AlwaysForbidden(text) != AlwaysForbidden(normal) {
			t.Errorf("%q and %q are judged differently", text, normal)
		}
	})
}

func FuzzParseValidation(f *testing.F) {
	for _, seed := range []string{"pytest -q", "go test 'a b'", "npm run x", `pytest "a\"b" \$`, "pytest; ls", "python3 -m unittest"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, command string) {
		args, err := ParseValidation(command)
		if err != nil {
			return
		}
		if len(args) < 2 || ToolchainOf(args) == "" || !isTestRunner(args) {
			t.Errorf("%q = %q", command, args)
		}
		for _, arg := range args {
			if strings.ContainsRune(arg, 0) || !utf8.ValidString(arg) {
				t.Errorf("%q = %q", command, args)
			}
		}
	})
}

type oneFile struct{ name, text string }

func (f oneFile) Paths() []string            { return []string{f.name} }
func (f oneFile) Read(string) ([]byte, bool) { return []byte(f.text), true }

// FuzzManifests looks for texts that take a parser down: the fuzzer itself
// reports a panic, an overflow and a hang.
func FuzzManifests(f *testing.F) {
	for _, seed := range []string{
		"[project]\ndependencies = [\"x\"]", `{"scripts":{"test":"x"}}`, "a=\"\"\"x\"\"\"\" , [[[[", "require x", "a.b.c=1", "a={b={c=1}}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for toolchain, name := range map[Toolchain]string{
			Python: "pyproject.toml", Rust: "Cargo.toml", Node: "package.json", Go: "go.mod", PHP: "composer.json",
		} {
			_, _ = SetUpOf(toolchain, oneFile{name, text})
			_, _ = Detect(oneFile{name, text})
		}
	})
}

func TestBoundedTOMLReadsStringsAsTOMLDoes(t *testing.T) {
	deep := strings.Repeat("[", maxTOMLNesting+1)
	for _, text := range []string{
		`a="` + deep + `"`, `a='` + deep + `'`, `a="""` + "\n" + deep + `"""`, `a='''` + "\n" + deep + `'''`, `a="\"` + deep + `"`,
		"# " + deep, "a=1 # " + deep, `a="""x""\"` + deep + `"""`, "a=" + strings.Repeat("[]", 100),
		strings.Repeat("a=1.5\n", 100), "a=[" + strings.Repeat("1.5,", 100) + "]",
	} {
		if !boundedTOML([]byte(text)) {
			t.Errorf("%.40q is refused", text)
		}
	}
	for _, text := range []string{
		"a=" + deep, `a=""` + deep, `a="""x"""` + deep, `a="""x""""` + deep, `a="""x"""""` + deep, "a='''x''''" + deep, "a='\\'" + deep,
		"a='\n" + deep, "# x\n" + deep, "a=" + strings.Repeat("{b=", maxTOMLNesting+1), strings.Repeat("a.", maxTOMLNesting+1) + "b=1",
		"a=" + strings.Repeat("[\n", maxTOMLNesting+1),
	} {
		if boundedTOML([]byte(text)) {
			t.Errorf("%.40q is let through", text)
		}
	}
}
