package state

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Fields lists the fields of v, a struct, and of all structs that it contains, as lines "struct number name type". It
// returns an error for a field that breaks the rules of this package. Tests compare the list with that of a released
// format: a line that is missing means that a number has another meaning now.
func Fields(v any) ([]string, error) {
	f := &fields{seen: make(map[reflect.Type]bool)}
	if err := f.visit(reflect.TypeOf(v)); err != nil {
		return nil, err
	}
	slices.Sort(f.lines)
	return f.lines, nil
}

type fields struct {
	seen  map[reflect.Type]bool
	lines []string
}

func (f *fields) visit(t reflect.Type) error {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return f.visit(t.Elem())
	case reflect.Map:
		if err := f.visit(t.Key()); err != nil {
			return err
		}
		return f.visit(t.Elem())
	case reflect.Struct:
		if f.seen[t] {
			return nil
		}
		f.seen[t] = true
		return f.fields(t)
	case reflect.Bool, reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return nil
	}
	return fmt.Errorf("%v is not plain data", t)
}

func (f *fields) fields(t reflect.Type) error {
	used := make(map[int]string)
	for i := range t.NumField() {
		s := t.Field(i)
		tag := s.Tag.Get("cbor")
		if tag == "-" {
			continue
		}
		parts := strings.Split(tag, ",")
		n, err := strconv.Atoi(parts[0])
		if err != nil || n <= 0 || !s.IsExported() || s.Anonymous || !slices.Contains(parts, "keyasint") {
			return fmt.Errorf("%v.%s has no number: its tag is %q", t, s.Name, tag)
		}
		if used[n] != "" {
			return fmt.Errorf("%v.%s and %s both have the number %d", t, s.Name, used[n], n)
		}
		used[n] = s.Name
		f.lines = append(f.lines, fmt.Sprintf("%v %d %s %v", t, n, s.Name, s.Type))
		if err := f.visit(s.Type); err != nil {
			return fmt.Errorf("%v.%s: %w", t, s.Name, err)
		}
	}
	return nil
}
