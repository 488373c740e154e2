/*
 * Clients of two nodes, each a process on its node: `nodes one ADDRESS PORT` tells `nodes two ADDRESS PORT`, which
 * connects to it, when to take which step, and prints what both say.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "say.h"

static dlm_lshandle_t ls;
static char block[DLM_LVB_LEN];
static struct dlm_lksb l = { .sb_lvbptr = block };
static int casts, basts;

static void cast(void *arg)
{
	(void)arg;
	casts++;
}

static void bast(void *arg)
{
	(void)arg;
	basts++;
}

static void dispatch(const int *what, int wanted)
{
	while (*what < wanted) {
		struct pollfd p = { .fd = dlm_ls_get_fd(ls), .events = POLLIN };

		must("poll", poll(&p, 1, PATIENCE_MS) == 1);
		must("dispatch", dlm_dispatch(p.fd) == 0);
	}
}

static int wait_for(int mode, int flags)
{
	return dlm_ls_lock_wait(ls, mode, &l, flags, "a", 1, 0, NULL, bast, NULL);
}

static int begin(int flags)
{
	return dlm_ls_lock(ls, LKM_PRMODE, &l, flags, "a", 1, 0, cast, NULL, bast, NULL);
}

/* The second node's client, step by step. */
static void two(int step)
{
	switch (step) {
	case 1:
		ended("NOQUEUE on two", wait_for(LKM_PRMODE, LKF_NOQUEUE), &l);
		said("lock on two", begin(LKF_VALBLK));
		break;
	case 2:
		dispatch(&casts, 1);
		printf("two: status %s, %s\n", word(l.sb_status), block);
		said("unlock on two", dlm_ls_unlock(ls, l.sb_lkid, 0, &l, NULL));
		dispatch(&casts, 2);
		printf("two: status %s\n", word(l.sb_status));
		break;
	case 3:
		said("lock on two", begin(0));
		break;
	case 4:
		said("end it on two", dlm_ls_deadlock_cancel(ls, l.sb_lkid, 0));
		/* To the kernel, a request whose answer is on its way is none that could be ended. */
		while (poll(&(struct pollfd){ .fd = dlm_ls_get_fd(ls), .events = POLLIN }, 1, 200) == 0)
			dlm_ls_deadlock_cancel(ls, l.sb_lkid, 0);
		dispatch(&casts, 3);
		printf("two: status %s\n", word(l.sb_status));
		said("lock on two", begin(0));
		said("cancel on two", dlm_ls_unlock(ls, l.sb_lkid, LKF_CANCEL, &l, NULL));
		dispatch(&casts, 4);
		printf("two: status %s\n", word(l.sb_status));
		break;
	case 5:
		ended("lock on two", wait_for(LKM_EXMODE, LKF_PERSISTENT), &l);
		said("close two", dlm_close_lockspace(ls));
		break;
	case 6:
		ls = dlm_open_lockspace("nodes");
		must("open two", ls != NULL);
		said("release two", dlm_release_lockspace("nodes", ls, 0));
		break;
	}
}

/* Has the second node's client take a step. */
static void have(FILE *peer, char step)
{
	int c;

	must("tell two", write(fileno(peer), &step, 1) == 1);
	while ((c = fgetc(peer)) != 0) {
		must("hear of two", c != EOF);
		putchar(c);
	}
	fflush(stdout);
}

static void one(FILE *peer, pid_t pid)
{
	ended("lock on one", wait_for(LKM_EXMODE, LKF_VALBLK), &l);
	have(peer, 1);
	dispatch(&basts, 1);
	printf("one is told\n");
	strcpy(block, "from one to two");
	ended("convert on one", wait_for(LKM_NLMODE, LKF_CONVERT | LKF_VALBLK), &l);
	have(peer, 2);

	printf("a wait that is cancelled\n");
	ended("convert on one", wait_for(LKM_EXMODE, LKF_CONVERT), &l);
	have(peer, 3);
	/* Before the next call: with libdlm, a routine's call ends the wait of whatever waits then. */
	dispatch(&basts, 2);
	printf("one is told\n");
	have(peer, 4);
	ended("unlock on one", dlm_ls_unlock_wait(ls, l.sb_lkid, 0, &l), &l);

	printf("an orphan of another node\n");
	have(peer, 5);
	ended("NOQUEUE on one", wait_for(LKM_PRMODE, LKF_NOQUEUE), &l);
	said("purge another process's", dlm_ls_purge(ls, 2, pid + 1));
	ended("NOQUEUE on one", wait_for(LKM_PRMODE, LKF_NOQUEUE), &l);
	said("purge that process's", dlm_ls_purge(ls, 2, pid));
	ended("lock on one", wait_for(LKM_PRMODE, 0), &l);
	ended("unlock on one", dlm_ls_unlock_wait(ls, l.sb_lkid, 0, &l), &l);
	have(peer, 6);
	said("release one", dlm_release_lockspace("nodes", ls, 0));
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	int first, s, yes = 1, step;
	pid_t pid;
	FILE *peer;

	must("ROLE ADDRESS PORT", argc == 4 && inet_aton(argv[2], &address.sin_addr));
	address.sin_port = htons(atoi(argv[3]));
	first = strcmp(argv[1], "one") == 0;
	ls = dlm_create_lockspace("nodes", 0600);
	must("create", ls != NULL);
	s = socket(AF_INET, SOCK_STREAM, 0);
	if (first) {
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
		must("listen", bind(s, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(s, 1) == 0);
		s = accept(s, NULL, NULL);
		peer = fdopen(s, "r");
		must("read", peer && fread(&pid, sizeof(pid), 1, peer) == 1);
		one(peer, pid);
		return 0;
	}
	for (int i = 0; connect(s, (struct sockaddr *)&address, sizeof(address)); i++) {
		must("connect", i < PATIENCE_MS / 10);
		usleep(10000);
		/* One that was refused cannot be used again. */
		close(s);
		s = socket(AF_INET, SOCK_STREAM, 0);
	}
	pid = getpid();
	peer = fdopen(s, "r");
	must("say who", peer && dup2(s, STDOUT_FILENO) >= 0 && write(s, &pid, sizeof(pid)) == sizeof(pid));
	while ((step = fgetc(peer)) != EOF) {
		two(step);
		putchar(0);
		must("answer", fflush(stdout) == 0);
	}
	return 0;
}
