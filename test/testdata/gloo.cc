/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of Gloo sum vectors with its ring all-reduce, over ibverbs or TCP, and check every element.
 *
 *	gloo ibverbs|tcp DEVICE RANK SIZE DIRECTORY ROUNDS
 *
 * A rank's last send may complete after its last receive. Gloo aborts if it is destroyed or if the peer is gone before that, so nothing is
 * destroyed, and ranks end together. */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <unistd.h>

#include <gloo/allreduce_ring.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>
#include <gloo/transport/tcp/device.h>

static std::shared_ptr<gloo::transport::Device> device(bool verbs, const char *name)
{
	if (!verbs) {
		gloo::transport::tcp::attr attr;
		attr.iface = name;
		return gloo::transport::tcp::CreateDevice(attr);
	}
	gloo::transport::ibverbs::attr attr;
	attr.name = name;
	attr.port = 1;
	attr.index = 0;
	return gloo::transport::ibverbs::CreateDevice(attr);
}

int main(int argc, char **argv)
{
	if (argc != 7)
		return 2;
	bool verbs = !strcmp(argv[1], "ibverbs");
	int rank = atoi(argv[3]), size = atoi(argv[4]), rounds = atoi(argv[6]);
	gloo::rendezvous::FileStore store(argv[5]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);

	auto dev = device(verbs, argv[2]);
	context->connectFullMesh(store, dev);
	for (size_t n : {1, 1000, 262144}) {
		auto &v = *new std::vector<float>(n);
		std::vector<float *> pointers{v.data()};
		auto sum = new gloo::AllreduceRing<float>(context, pointers, n);
		auto from = std::chrono::steady_clock::now();
		for (int round = 0; round < rounds; round++) {
			for (size_t i = 0; i < n; i++)
				v[i] = rank + i % 100 + round % 7;
			sum->run();
			for (size_t i = 0; i < n; i++) {
				float want = size * (size - 1) / 2 + size * (i % 100 + round % 7);
				if (v[i] != want) {
					fprintf(stderr, "rank %d round %d: element %zu of %zu is %g, want %g\n", rank, round, i, n, v[i], want);
					return 1;
				}
			}
		}
		std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - from;
		printf("%zu elements: %.2f us\n", n, took.count() / rounds);
	}
	printf("ok rank %d of %d\n", rank, size);
	fflush(stdout);
	store.set("done" + std::to_string(rank), {1});
	for (int other = 0; other < size; other++)
		store.wait({"done" + std::to_string(other)}, std::chrono::minutes(1));
	_exit(0);
}
