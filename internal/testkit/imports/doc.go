// Package imports has a test that compares the imports of every package with the table "Packages" of the architecture document.
package imports
