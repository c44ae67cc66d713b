# Registers buffers of Python (bytearray, mmap, array) while other threads fill others on the
# same pages, and moves them through RDMA.
import array
import ctypes
import mmap
import threading

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ

ctx = Context(name=get_device_list()[0].name.decode())
pd, cq = PD(ctx), CQ(ctx, 16)
gid = ctx.query_gid(1, 0)


def queue_pair():
    return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(8, 8, 1, 1)))


def connect(qp, to):
    attr = QPAttr(qp_state=e.IBV_QPS_INIT, port_num=1)
    attr.qp_access_flags = ACCESS
    qp.to_init(attr)
    route = GlobalRoute(dgid=gid, sgid_index=0)
    route.hop_limit = 64
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ACCESS
    attr.dest_qp_num = to.qp_num
    attr.path_mtu = e.IBV_MTU_1024
    attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
    attr.min_rnr_timer = 12
    attr.timeout, attr.retry_cnt, attr.rnr_retry = 14, 7, 7
    attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route, dlid=0)
    qp.to_rts(attr)


a, b = queue_pair(), queue_pair()
connect(a, b)
connect(b, a)


def address(buffer):
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def write(source, target, length):
    wr = SendWR(num_sge=1, sg=[SGE(source.buf, length, source.lkey)], opcode=e.IBV_WR_RDMA_WRITE)
    wr.set_wr_rdma(target.rkey, target.buf)
    a.post_send(wr)
    while True:
        n, done = cq.poll()
        if n:
            assert done[0].status == e.IBV_WC_SUCCESS, done[0].status
            return


stop, wrong = False, []


def churn(seed):
    """Fills small objects of the heap and looks at them again."""
    k = seed
    while not stop:
        k = k % 250 + 1
        mine = [bytearray([k]) * 3000 for _ in range(20)]
        if any(set(m) != {k} for m in mine):
            wrong.append(k)


threads = [threading.Thread(target=churn, args=(i,)) for i in range(3)]
for t in threads:
    t.start()
for turn in range(40):
    length = 5000 + 700 * turn
    kinds = [bytearray(length), mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), mmap.mmap(-1, length),
             memoryview(array.array("B", bytes(length))).cast("B")]
    source, target = kinds[turn % 4], kinds[(turn + 1) % 4]
    source[:] = bytes((i * 7 + turn) % 256 for i in range(length))
    with MR(pd, length, ACCESS, address=address(source)) as m, MR(pd, length, ACCESS, address=address(target)) as n:
        write(m, n, length)
        assert bytes(target[:]) == bytes(source[:]), "turn %d: other bytes" % turn
    assert bytes(target[:]) == bytes(source[:]), "turn %d: other bytes after the deregistration" % turn
stop = True
for t in threads:
    t.join()
assert not wrong, "bytes of the heap changed: %s" % wrong
print("ok buffers")
