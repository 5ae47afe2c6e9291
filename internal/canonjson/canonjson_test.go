package canonjson_test

import (
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/veyra-labs/veyra-sandboxd/internal/canonjson"
)

type vector struct {
	Name      string          `json:"name"`
	Value     json.RawMessage `json:"value"`
	Canonical string          `json:"canonical"`
	SHA256    string          `json:"sha256"`
}

func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/canonical.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) { checkVector(t, v) })
	}
}

func checkVector(t *testing.T, v vector) {
	t.Helper()
	got, err := canonjson.Canonicalise(v.Value)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(v.Canonical, string(got)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	parsed, err := canonjson.ParseCanonical(got)
	if err != nil {
		t.Fatal(err)
	}
	if hash, err := canonjson.Hash(parsed); err != nil || hash != v.SHA256 {
		t.Errorf("hash = %s, %v, want %s", hash, err, v.SHA256)
	}
}

func nested(depth int) string {
	return strings.Repeat("[", depth) + strings.Repeat("]", depth)
}

// TestParseRefuses covers attack case G18.
func TestParseRefuses(t *testing.T) {
	tests := map[string]struct {
		text string
		want error
	}{
		"nul":                      {`"a\u0000"`, canonjson.ErrNUL},
		"nul in a name":            {`{"\u0000":1}`, canonjson.ErrNUL},
		"raw nul":                  {"\"\x00\"", canonjson.ErrSyntax},
		"high surrogate alone":     {`"\ud83d"`, canonjson.ErrSurrogate},
		"high surrogate then text": {`"\ud83dxx"`, canonjson.ErrSurrogate},
		"low surrogate alone":      {`"\ude42"`, canonjson.ErrSurrogate},
		"pair in wrong order":      {`"\ude42\ud83d"`, canonjson.ErrSurrogate},
		"high, then no surrogate":  {`"\ud83d\u0041"`, canonjson.ErrSurrogate},
		"surrogate bytes":          {"\"\xed\xa0\xbd\"", canonjson.ErrUTF8},
		"bad utf-8":                {"\"\xff\"", canonjson.ErrUTF8},
		"bad utf-8 after value":    {"1 \xff", canonjson.ErrUTF8},
		"float":                    {`1.0`, canonjson.ErrNumber},
		"exponent":                 {`1e3`, canonjson.ErrNumber},
		"huge exponent":            {`[1e400]`, canonjson.ErrNumber},
		"minus alone":              {`-`, canonjson.ErrNumber},
		"leading zero":             {`01`, canonjson.ErrNumber},
		"too many digits":          {strings.Repeat("9", 5000), canonjson.ErrNumber},
		"not a number":             {`NaN`, canonjson.ErrSyntax},
		"duplicate":                {`{"a":1,"a":2}`, canonjson.ErrDuplicate},
		"duplicate by escape":      {`{"a":1,"\u0061":2}`, canonjson.ErrDuplicate},
		"depth 65":                 {nested(65), canonjson.ErrDepth},
		"depth 100000":             {strings.Repeat("[", 100000), canonjson.ErrDepth},
		"objects 65 deep":          {strings.Repeat(`{"a":`, 65), canonjson.ErrDepth},
		"empty":                    {``, canonjson.ErrSyntax},
		"two values":               {`1 2`, canonjson.ErrSyntax},
		"trailing comma":           {`[1,]`, canonjson.ErrSyntax},
		"object trailing comma":    {`{"a":1,}`, canonjson.ErrSyntax},
		"no colon":                 {`{"a" 1}`, canonjson.ErrSyntax},
		"name not a string":        {`{1:1}`, canonjson.ErrSyntax},
		"open list":                {`[1`, canonjson.ErrSyntax},
		"open object":              {`{"a":1`, canonjson.ErrSyntax},
		"open string":              {`"a`, canonjson.ErrSyntax},
		"open escape":              {`"\`, canonjson.ErrSyntax},
		"unknown escape":           {`"\x41"`, canonjson.ErrSyntax},
		"short escape":             {`"\u12"`, canonjson.ErrSyntax},
		"signed escape":            {`"\u+123"`, canonjson.ErrSyntax},
		"tab in string":            {"\"\t\"", canonjson.ErrSyntax},
		"byte order mark":          {"\ufeff1", canonjson.ErrSyntax},
		"word cut":                 {`tru`, canonjson.ErrSyntax},
		"word with a tail":         {`truex`, canonjson.ErrSyntax},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := canonjson.Parse([]byte(test.text)); !errors.Is(err, test.want) {
				t.Errorf("error = %v, want %v", err, test.want)
			}
		})
	}
}

func TestParseTakesDepth64(t *testing.T) {
	got, err := canonjson.Canonicalise([]byte(nested(64)))
	if err != nil || string(got) != nested(64) {
		t.Errorf("got %q, %v", got, err)
	}
}

type named string

func TestMarshal(t *testing.T) {
	huge, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	var none *big.Int
	value := map[string]any{
		"int": -3, "i8": int8(-128), "u64": uint64(18446744073709551615), "u8": uint8(7),
		"number": json.Number("-0"), "big": huge, "none": none, "nil": nil,
		"yes": true, "no": false, "named": named("x"),
		"strings": []string{"b", "a"}, "empty": []string(nil),
		"objects": []map[string]any{{"z": 1, "y": []any{}}},
		"names":   map[named]int{"k": 1},
	}
	const want = `{"big":123456789012345678901234567890,"empty":[],"i8":-128,"int":-3,` +
		`"named":"x","names":{"k":1},"nil":null,"no":false,"none":null,"number":0,` +
		`"objects":[{"y":[],"z":1}],"strings":["b","a"],"u64":18446744073709551615,"u8":7,"yes":true}`
	got, err := canonjson.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

// TestMarshalSortsByCodePoint has two names whose order differs in UTF-16.
func TestMarshalSortsByCodePoint(t *testing.T) {
	got, err := canonjson.Marshal(map[string]int{"\U0001F642": 1, "\uFF5E": 2})
	if want := "{\"\uFF5E\":2,\"\U0001F642\":1}"; err != nil || string(got) != want {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestMarshalRefuses(t *testing.T) {
	cycle := map[string]any{}
	cycle["self"] = cycle
	tests := map[string]struct {
		value any
		want  error
	}{
		"float":         {1.0, canonjson.ErrNumber},
		"float inside":  {[]any{float32(1)}, canonjson.ErrNumber},
		"number float":  {json.Number("1.5"), canonjson.ErrNumber},
		"number text":   {json.Number("12x"), canonjson.ErrNumber},
		"number empty":  {json.Number(""), canonjson.ErrNumber},
		"nul":           {"\x00", canonjson.ErrNUL},
		"bad utf-8":     {"\xff", canonjson.ErrUTF8},
		"surrogate":     {"\xed\xa0\x80", canonjson.ErrUTF8},
		"bad name":      {map[string]any{"\xff": 1}, canonjson.ErrUTF8},
		"struct":        {struct{ A int }{1}, canonjson.ErrType},
		"bytes":         {[]byte("x"), canonjson.ErrType},
		"pointer":       {new(int), canonjson.ErrType},
		"function":      {func() {}, canonjson.ErrType},
		"integer names": {map[int]int{1: 1}, canonjson.ErrType},
		"cycle":         {cycle, canonjson.ErrDepth},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got, err := canonjson.Marshal(test.value); !errors.Is(err, test.want) {
				t.Errorf("got %q, error %v, want %v", got, err, test.want)
			}
		})
	}
}

func TestParseCanonicalRefusesOtherForms(t *testing.T) {
	for _, text := range []string{` 1`, `{"b":1,"a":2}`, `"\u0041"`, `"\/"`, `[1, 2]`, `-0`, `"\u001F"`} {
		if _, err := canonjson.ParseCanonical([]byte(text)); !errors.Is(err, canonjson.ErrNotCanonical) {
			t.Errorf("%s: error = %v, want ErrNotCanonical", text, err)
		}
	}
}

func TestCleanMakesTextsFit(t *testing.T) {
	dirty := map[string]any{
		"out":     "a\xff\xfeb\x00c",
		"list":    []string{"ok", "\xed\xa0\x80"},
		"n\x00":   named("\x80"),
		"number":  json.Number("7"),
		"nothing": nil,
	}
	got, err := canonjson.Marshal(canonjson.Clean(dirty))
	if err != nil {
		t.Fatal(err)
	}
	const bad = "\uFFFD"
	want := `{"list":["ok","` + bad + bad + bad + `"],"nothing":null,"number":7,"n` + bad + `":"` + bad +
		`","out":"a` + bad + bad + "b" + bad + `c"}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
}

func TestCleanEndsOnACycle(t *testing.T) {
	cycle := []any{nil}
	cycle[0] = cycle
	if _, err := canonjson.Marshal(canonjson.Clean(cycle)); !errors.Is(err, canonjson.ErrDepth) {
		t.Errorf("error = %v, want ErrDepth", err)
	}
}

func TestCleanLeavesValidTextAlone(t *testing.T) {
	const text = "na\u00efve \uFFFD \u2028 \U0001F642"
	if got := canonjson.CleanText(text); got != text {
		t.Errorf("got %q", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":[1,-2,null,true,"x"]}`, `"\ud83d\ude42"`, ` [ 1 , 2 ] `,
		`"\u0000"`, `1.5`, nested(65), "\"\x7f\u2028\"", `{"a":1,"a":1}`, `-0`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := canonjson.Parse(text)
		if err != nil {
			return
		}
		if !json.Valid(text) {
			t.Fatalf("parsed what is not json: %q", text)
		}
		once, err := canonjson.Marshal(v)
		if err != nil {
			t.Fatalf("parsed %q but can't write it: %v", text, err)
		}
		again, err := canonjson.ParseCanonical(once)
		if err != nil {
			t.Fatalf("own text %q is refused: %v", once, err)
		}
		// cmp would take for ever on lists sixty levels deep.
		if twice, err := canonjson.Marshal(again); err != nil || string(twice) != string(once) {
			t.Fatalf("%q became %q, %v", once, twice, err)
		}
	})
}
