// Package house holds the rules of the repository to what it says about itself: a test
// reads the table "The house" of docs/architecture.md and compares it with what the
// packages import. It has nothing to import and no code but tests.
package house
