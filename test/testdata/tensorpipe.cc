/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes exchange messages with tensors through TensorPipe, the transport of PyTorch's RPC, over ibv or uv (TCP), and check
 * every byte. All data goes through the transport: the only channel is basic.
 *
 *	tensorpipe ibv|uv ADDRESS FILE ROUNDS listen|connect
 *
 * The listener writes its URL to FILE. */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <future>
#include <vector>

#include <unistd.h>

#include <tensorpipe/tensorpipe.h>

using namespace tensorpipe;

static void fail(const Error &error)
{
	if (!error)
		return;
	fprintf(stderr, "%s\n", error.what().c_str());
	_exit(1);
}

static unsigned char byte_of(size_t size, int round, size_t i) { return size * 7 + round * 31 + i * 13 + i / 251; }

static void send(Pipe &pipe, std::vector<unsigned char> &tensor, int round)
{
	for (size_t i = 0; i < tensor.size(); i++)
		tensor[i] = byte_of(tensor.size(), round, i);
	Message message;
	message.metadata = std::to_string(round);
	message.tensors.resize(1);
	message.tensors[0].buffer = CpuBuffer{.ptr = tensor.data()};
	message.tensors[0].length = tensor.size();
	std::promise<void> done;
	pipe.write(message, [&](const Error &error) { fail(error); done.set_value(); });
	done.get_future().get();
}

static void receive(Pipe &pipe, std::vector<unsigned char> &tensor, int round)
{
	std::promise<Descriptor> described;
	pipe.readDescriptor([&](const Error &error, Descriptor d) { fail(error); described.set_value(std::move(d)); });
	Descriptor descriptor = described.get_future().get();
	if (descriptor.metadata != std::to_string(round) || descriptor.tensors.size() != 1 || descriptor.tensors[0].length != tensor.size()) {
		fprintf(stderr, "message %s instead of %d\n", descriptor.metadata.c_str(), round);
		_exit(1);
	}
	Allocation allocation;
	allocation.tensors.resize(1);
	allocation.tensors[0].buffer = CpuBuffer{.ptr = tensor.data()};
	std::promise<void> done;
	pipe.read(allocation, [&](const Error &error) { fail(error); done.set_value(); });
	done.get_future().get();
	for (size_t i = 0; i < tensor.size(); i++) {
		if (tensor[i] != byte_of(tensor.size(), round, i)) {
			fprintf(stderr, "round %d: byte %zu of %zu differs\n", round, i, tensor.size());
			_exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	bool ibv = !strcmp(argv[1], "ibv"), listens = !strcmp(argv[5], "listen");
	int rounds = atoi(argv[4]);
	Context context;
	auto transport = ibv ? transport::ibv::create() : transport::uv::create();
	if (!transport->isViable()) {
		fprintf(stderr, "transport %s cannot work here\n", argv[1]);
		return 3;
	}
	context.registerTransport(0, argv[1], transport);
	context.registerChannel(0, "basic", channel::basic::create());
	std::shared_ptr<Listener> listener;
	std::shared_ptr<Pipe> pipe;
	if (listens) {
		listener = context.listen({std::string(argv[1]) + "://" + argv[2]});
		std::string part = std::string(argv[3]) + ".part";
		std::ofstream(part) << listener->url(argv[1]);
		rename(part.c_str(), argv[3]);
		std::promise<std::shared_ptr<Pipe>> accepted;
		listener->accept([&](const Error &error, std::shared_ptr<Pipe> p) { fail(error); accepted.set_value(p); });
		pipe = accepted.get_future().get();
	} else {
		std::string url;
		std::ifstream(argv[3]) >> url;
		pipe = context.connect(url);
	}
	for (size_t size : {8, 65536, 4194304}) {
		std::vector<unsigned char> tensor(size);
		auto from = std::chrono::steady_clock::now();
		for (int round = 0; round < rounds; round++) {
			if (listens) {
				receive(*pipe, tensor, round);
				send(*pipe, tensor, round);
			} else {
				send(*pipe, tensor, round);
				memset(tensor.data(), 0, size);
				receive(*pipe, tensor, round);
			}
		}
		std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - from;
		printf("%zu bytes: %.2f us\n", size, took.count() / rounds);
	}
	printf("ok %s\n", argv[5]);
	fflush(stdout);
	pipe->close();
	context.join();
	return 0;
}
