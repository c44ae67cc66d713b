// Package statetest has checks for the structs of a state, for the tests of the packages that own them.
//
// Tags keeps the rules of package state. Complete and Golden keep what a format has: a file in testdata for each format, with its contents as
// text beside it. The files of a format that was released never change.
package statetest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/state"
)

// Tags checks that every field of the structs, and of the structs in them, has a tag as package state requires, and that no number is
// used twice in a struct.
func Tags(t *testing.T, values ...any) {
	t.Helper()
	seen := map[reflect.Type]bool{}
	for _, v := range values {
		for _, problem := range tags(reflect.TypeOf(v), seen) {
			t.Error(problem)
		}
	}
}

func tags(typ reflect.Type, seen map[reflect.Type]bool) (problems []string) {
	switch typ.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return tags(typ.Elem(), seen)
	case reflect.Struct:
	case reflect.Chan, reflect.Func, reflect.Interface, reflect.UnsafePointer, reflect.Uintptr:
		return []string{fmt.Sprintf("a state has a %v", typ)}
	default:
		return nil
	}
	if seen[typ] {
		return nil
	}
	seen[typ] = true
	used := map[int]string{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := fmt.Sprintf("%v.%s", typ, f.Name)
		number, options, _ := strings.Cut(f.Tag.Get("cbor"), ",")
		n, err := strconv.Atoi(number)
		switch {
		case !f.IsExported():
			problems = append(problems, name+" is not exported, so it is not encoded")
		case err != nil || n < 1 || options != "keyasint,omitempty":
			problems = append(problems, fmt.Sprintf("%s has the tag %q, want cbor:\"NUMBER,keyasint,omitempty\"", name, f.Tag))
		case used[n] != "":
			problems = append(problems, fmt.Sprintf("%s and %s have the number %d", name, used[n], n))
		}
		used[n] = name
		problems = append(problems, tags(f.Type, seen)...)
	}
	return problems
}

// Complete checks that together the values set every field of their structs: a golden file must contain everything.
func Complete(t *testing.T, values ...any) {
	t.Helper()
	set := map[string]bool{}
	for _, v := range values {
		fields(reflect.ValueOf(v), set)
	}
	for name, done := range set {
		if !done {
			t.Errorf("no value sets %s", name)
		}
	}
}

// fields records for every field of v whether it is set.
func fields(v reflect.Value, set map[string]bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fields(v.Elem(), set)
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			fields(v.Index(i), set)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			fields(v.MapIndex(key), set)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			name := fmt.Sprintf("%v.%s", v.Type(), v.Type().Field(i).Name)
			set[name] = set[name] || !v.Field(i).IsZero()
			fields(v.Field(i), set)
		}
	}
}

// Golden checks that this build reads the files testdata/NAME.FORMAT.cbor of every format as the text in NAME.FORMAT.txt, and writes the same
// bytes again. It returns the structs that it has read. With VRDMA_GOLDEN=1 it writes value, if there is no file of the current format.
func Golden[T any](t *testing.T, name string, value *T) (read []*T) {
	t.Helper()
	current := filepath.Join("testdata", fmt.Sprintf("%s.%d.cbor", name, state.Format))
	if _, err := os.Stat(current); os.IsNotExist(err) && os.Getenv("VRDMA_GOLDEN") != "" {
		b, err := state.Marshal(value)
		if err == nil {
			err = os.MkdirAll("testdata", 0o755)
		}
		if err == nil {
			err = os.WriteFile(current, b, 0o644)
		}
		if err == nil {
			err = os.WriteFile(textOf(current), []byte(Text(value)), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	files, _ := filepath.Glob(filepath.Join("testdata", name+".*.cbor"))
	if len(files) < state.Format-state.OldestRead+1 {
		t.Errorf("testdata has %d formats of %s, want those from %d to %d; VRDMA_GOLDEN=1 writes the last one", len(files), name, state.OldestRead, state.Format)
	}
	for _, file := range files {
		want, err := os.ReadFile(textOf(file))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		v := new(T)
		if err := state.Unmarshal(b, v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if got := Text(v); got != string(want) {
			t.Errorf("%s reads as\n%s\nwant\n%s", file, got, want)
		}
		if again, err := state.Marshal(v); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s: written again, it has %d bytes instead of %d, %v", file, len(again), len(b), err)
		}
		read = append(read, v)
	}
	return read
}

func textOf(file string) string { return strings.TrimSuffix(file, ".cbor") + ".txt" }

// Text returns the fields of a state that are not zero, one in a line. So a field that is added later does not change the text.
func Text(v any) string {
	var b strings.Builder
	write(&b, "", reflect.ValueOf(v))
	return b.String()
}

func write(b *strings.Builder, name string, v reflect.Value) {
	switch {
	case v.IsZero(), v.Kind() == reflect.Slice && v.Len() == 0:
	case v.Kind() == reflect.Pointer:
		write(b, name, v.Elem())
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			write(b, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case (v.Kind() == reflect.Slice || v.Kind() == reflect.Array) && v.Type().Elem().Kind() == reflect.Uint8:
		fmt.Fprintf(b, "%s = %x\n", name, v.Interface())
	case v.Kind() == reflect.Slice || v.Kind() == reflect.Array:
		for i := range v.Len() {
			item := fmt.Sprintf("%s[%d]", name, i)
			fmt.Fprintf(b, "%s\n", item)
			write(b, item, v.Index(i))
		}
	case v.Kind() == reflect.Map:
		fmt.Fprintf(b, "%s = %v\n", name, v.Interface()) // fmt sorts the keys
	case v.Kind() == reflect.Uint8:
		fmt.Fprintf(b, "%s = %d\n", name, v.Uint()) // not the name of a state
	default:
		fmt.Fprintf(b, "%s = %v\n", name, v.Interface())
	}
}
