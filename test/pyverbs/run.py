#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs rdma-core's pyverbs tests and prints one line a test, for pyverbs_test.go:

    RESULT <TAB> ok|skip|fail|error <TAB> test id <TAB> reason

Usage: run.py DIRECTORY EXCLUDED ARGS..., where DIRECTORY holds the package
`tests`, EXCLUDED is a file of test ids (or prefixes ending in *) not to run, and
ARGS are the suite's own, and texts: only tests with one of them in their name are run,
and none with a text that comes after a !. The suite itself is not changed. A test that takes more
than a minute (SECONDS_A_TEST) ends the run with a traceback."""
import faulthandler
import os
import sys
import time
import unittest


class Lines(unittest.TestResult):
    def startTest(self, test):
        super().startTest(test)
        self.failed = False
        sys.stdout.flush()
        faulthandler.dump_traceback_later(int(os.environ.get('SECONDS_A_TEST', 60)), exit=True)
        self.began = time.monotonic()
        print('START\t' + test.id(), flush=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        print('TOOK\t%s\t%.1f s' % (test.id(), time.monotonic() - self.began), flush=True)
        super().stopTest(test)

    def say(self, what, test, reason=''):
        print('\t'.join(['RESULT', what, test.id(), ' '.join(str(reason).split())]), flush=True)

    def trace(self, err, test):
        print(self._exc_info_to_string(err, test), flush=True)

    def addSuccess(self, test):
        self.say('ok', test)

    def addSkip(self, test, reason):
        self.say('skip', test, reason)

    def addFailure(self, test, err):
        self.trace(err, test)
        self.say('fail', test, err[1])

    def addError(self, test, err):
        self.trace(err, test)
        self.say('error', test, repr(err[1]))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.trace(err, test)
            self.say('fail', subtest, err[1])


def leaves(suite):
    for t in suite:
        if isinstance(t, unittest.TestSuite):
            yield from leaves(t)
        else:
            yield t


def wanted(name, texts):
    yes = [t for t in texts if not t.startswith('!')]
    return (not yes or any(t in name for t in yes)) and not any(t[1:] in name for t in texts if t.startswith('!'))


def main():
    top, excluded = sys.argv[1:3]
    sys.argv[1:] = sys.argv[3:]
    sys.path[:0] = [top, os.path.join(top, 'tests')]
    with open(excluded) as f:
        names = [line.split()[0] for line in f if line.strip() and not line.startswith('#')]

    def out(test):
        return any(test.id() == n or (n.endswith('*') and test.id().startswith(n[:-1])) for n in names)

    from args_parser import parser
    parser.parse_args()
    import tests
    suite = unittest.TestSuite()
    for t in leaves(unittest.defaultTestLoader.loadTestsFromModule(tests)):
        if out(t):
            print('RESULT\texcluded\t%s\t' % t.id(), flush=True)
        elif wanted(t.id(), sys.argv[1:]):
            suite.addTest(t)
    suite.run(Lines())
    print('END', flush=True)


main()
