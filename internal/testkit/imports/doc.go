// Package imports compares the imports of every package with the table "Packages" of the architecture document. It imports nothing and
// has tests only.
package imports
