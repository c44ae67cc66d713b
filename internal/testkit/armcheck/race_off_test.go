//go:build !race

package armcheck

const raceEnabled = false
