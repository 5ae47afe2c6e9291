package canonjson

import (
	"reflect"
	"slices"
	"strings"
)

// CleanText returns s with every byte that is not UTF-8 and every U+0000
// replaced by U+FFFD: what a program printed, made fit to be signed.
func CleanText(s string) string {
	s = replaceInvalid(s)
	return strings.ReplaceAll(s, "\x00", "\uFFFD")
}

// replaceInvalid puts one U+FFFD for each bad byte. strings.ToValidUTF8 would
// put one for a run of them, which hides how much was lost.
func replaceInvalid(s string) string {
	valid := strings.ToValidUTF8(s, "")
	if len(valid) == len(s) {
		return s
	}
	var out strings.Builder
	for _, r := range s {
		out.WriteRune(r)
	}
	return out.String()
}

// Clean returns a copy of v in which every string has gone through CleanText,
// names included; lists become []any and objects map[string]any. What has no
// canonical text stays as it is, so that Marshal names it. Of two names that
// become one the later, in byte order, is kept.
func Clean(v any) any {
	return clean(reflect.ValueOf(v), 0)
}

func clean(v reflect.Value, depth int) any {
	switch {
	case !v.IsValid():
		return nil
	case depth > MaxDepth:
		// Deeper is refused by Marshal anyway, and a cycle must end.
		return v.Interface()
	}
	switch v.Kind() {
	case reflect.String:
		return cleanString(v)
	case reflect.Interface:
		return clean(v.Elem(), depth)
	case reflect.Slice:
		return cleanList(v, depth)
	case reflect.Map:
		return cleanObject(v, depth)
	}
	return v.Interface()
}

// cleanString keeps the type of named strings, since json.Number is one.
func cleanString(v reflect.Value) any {
	cleaned := reflect.New(v.Type()).Elem()
	cleaned.SetString(CleanText(v.String()))
	return cleaned.Interface()
}

func cleanList(v reflect.Value, depth int) any {
	if v.Type().Elem().Kind() == reflect.Uint8 {
		return v.Interface()
	}
	list := make([]any, v.Len())
	for i := range list {
		list[i] = clean(v.Index(i), depth+1)
	}
	return list
}

func cleanObject(v reflect.Value, depth int) any {
	if v.Type().Key().Kind() != reflect.String {
		return v.Interface()
	}
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int {
		return strings.Compare(a.String(), b.String())
	})
	object := make(map[string]any, len(keys))
	for _, key := range keys {
		object[CleanText(key.String())] = clean(v.MapIndex(key), depth+1)
	}
	return object
}
