package attack_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/attack"
)

func TestReportComesBack(t *testing.T) {
	want := []attack.Try{
		{Name: "setns", Result: "EPERM"},
		{Name: "mem@/workspace", Result: attack.Done, Detail: "a \"b\"\n\x1b[31m\xff\x00"},
		{Name: attack.Safe("open:/proc/sys/a b\n"), Result: attack.Seen, Detail: strings.Repeat("x", attack.MaxDetail)},
	}
	var text bytes.Buffer
	for _, try := range want {
		if err := attack.Write(&text, try); err != nil {
			t.Fatal(err)
		}
	}
	got, err := attack.Parse(&text)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
}

func TestParseRefusesWhatAJobMayWrite(t *testing.T) {
	for name, text := range map[string]string{
		"no detail":         "setns EPERM\n",
		"no result":         "setns\n",
		"empty line":        "\n",
		"raw escape":        "setns EPERM \"\x1b\"x\n",
		"back quotes":       "setns EPERM `x`\n",
		"single quotes":     "setns EPERM 'x'\n",
		"control in a name": "set\x1bns EPERM \"\"\n",
		"long name":         strings.Repeat("n", attack.MaxName+1) + " EPERM \"\"\n",
		"long detail":       "n EPERM \"" + strings.Repeat("d", attack.MaxDetail+1) + "\"\n",
		"long line":         "n EPERM \"" + strings.Repeat("d", attack.MaxLine) + "\"\n",
		"many lines":        strings.Repeat("n EPERM \"\"\n", attack.MaxTries+1),
		"many bytes":        strings.Repeat("n EPERM \""+strings.Repeat("d", 900)+"\"\n", attack.MaxReport/900),
		"something behind":  "n EPERM \"\" forged\n",
	} {
		if got, err := attack.Parse(strings.NewReader(text)); !errors.Is(err, attack.ErrReport) {
			t.Errorf("%s: %d tries, %v", name, len(got), err)
		}
	}
}

// FuzzParse: what parses comes back the same when it is written again.
func FuzzParse(f *testing.F) {
	f.Add([]byte("setns EPERM \"\"\nmem@/tmp done \"\\x1b\"\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := attack.Parse(bytes.NewReader(text))
		if err != nil {
			return
		}
		var again bytes.Buffer
		for _, try := range all {
			if err := attack.Write(&again, try); err != nil {
				t.Fatal(err)
			}
		}
		back, err := attack.Parse(&again)
		if diff := cmp.Diff(all, back); err != nil || diff != "" {
			t.Fatalf("error %v (-first +again):\n%s", err, diff)
		}
	})
}
