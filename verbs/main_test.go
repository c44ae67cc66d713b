package verbs_test

import (
	"os"
	"testing"

	"vrdma/internal/testdaemon"
)

func TestMain(m *testing.M) {
	testdaemon.Main()
	os.Exit(m.Run())
}
