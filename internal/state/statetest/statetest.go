// Package statetest has checks for the structs of a state, for the tests of the packages that own them.
//
// Tags keeps the rules of package state. Complete and Golden keep what a format has: a file in testdata for each format, with its contents as
// text beside it. The files of a format that was released never change. Filled makes a value for Golden of a struct with many fields.
package statetest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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

// Numbers checks that the fields of the structs have the numbers of a golden file, which has a line for each field. Fields may be added, but
// a number keeps its meaning for ever. Fields of the packages in without have a test of their own. With VRDMA_GOLDEN a missing file is written.
func Numbers(t *testing.T, file string, without []string, values ...any) {
	t.Helper()
	var now []string
	for _, v := range values {
		list, err := state.Fields(v)
		if err != nil {
			t.Fatal(err)
		}
		now = append(now, list...)
	}
	now = slices.DeleteFunc(now, func(field string) bool {
		pkg, _, _ := strings.Cut(field, ".")
		return slices.Contains(without, pkg)
	})
	slices.Sort(now)
	now = slices.Compact(now)
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && os.Getenv("VRDMA_GOLDEN") != "" {
		b = []byte(strings.Join(now, "\n") + "\n")
		err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, b, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); !slices.Contains(now, line) {
			t.Errorf("%s has the field %q: a number keeps its meaning for ever", file, line)
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

// Filled returns a struct in which every field that is encoded is set, also in the structs within: numbers count up, a slice or a map has one element.
func Filled[T any]() *T {
	v := new(T)
	var n uint64
	fill(reflect.ValueOf(v).Elem(), &n)
	return v
}

// fill sets v, and the last number that was given is n.
func fill(v reflect.Value, n *uint64) {
	*n++
	small := *n%100 + 1 // also fits in 7 bits
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[netip.Addr]() {
			v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{192, 0, 2, byte(small)})))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("cbor") != "-" { // not encoded
				fill(v.Field(i), n)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Array: // some have thousands of elements
		for i := range min(2, v.Len()) {
			fill(v.Index(i), n)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(int64(small))
	case reflect.Uint8, reflect.Uint16:
		v.SetUint(small)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(*n)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(float64(small) + 0.5)
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	default:
		panic(fmt.Sprintf("a state has a %v", v.Type()))
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
			t.Errorf("%s differs from its text: %s", file, firstDifference(got, string(want)))
		}
		if again, err := state.Marshal(v); err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s: written again, it has %d bytes instead of %d, %v", file, len(again), len(b), err)
		}
		read = append(read, v)
	}
	return read
}

// firstDifference names the first line in which two texts differ.
func firstDifference(got, want string) string {
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d is %q, want %q", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}

func textOf(file string) string { return strings.TrimSuffix(file, ".cbor") + ".txt" }

// Text returns the fields of a state that are not zero, one in a line. So a field that is added later does not change the text.
func Text(v any) string {
	var b strings.Builder
	write(&b, "", reflect.ValueOf(v))
	return b.String()
}

// mapText is what fmt prints, with only those fields of structs that are not zero.
func mapText(v reflect.Value) string {
	if v.Type().Elem().Kind() != reflect.Struct {
		return fmt.Sprint(v.Interface()) // fmt sorts the keys
	}
	texts := reflect.MakeMap(reflect.MapOf(v.Type().Key(), reflect.TypeFor[string]()))
	for _, key := range v.MapKeys() {
		var fields []string
		for _, f := range v.MapIndex(key).Fields() {
			if !f.IsZero() {
				fields = append(fields, fmt.Sprint(f.Interface()))
			}
		}
		texts.SetMapIndex(key, reflect.ValueOf("{"+strings.Join(fields, " ")+"}"))
	}
	return fmt.Sprint(texts.Interface())
}

func write(b *strings.Builder, name string, v reflect.Value) {
	switch {
	case v.IsZero(), v.Kind() == reflect.Slice && v.Len() == 0:
	case v.Kind() == reflect.Pointer:
		write(b, name, v.Elem())
	case v.Type() == reflect.TypeFor[netip.Addr]():
		fmt.Fprintf(b, "%s = %v\n", name, v.Interface())
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
		fmt.Fprintf(b, "%s = %s\n", name, mapText(v))
	case v.Kind() == reflect.Uint8:
		fmt.Fprintf(b, "%s = %d\n", name, v.Uint()) // not the name of a state
	default:
		fmt.Fprintf(b, "%s = %v\n", name, v.Interface())
	}
}
