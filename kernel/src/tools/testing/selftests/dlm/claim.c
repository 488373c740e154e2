// SPDX-License-Identifier: GPL-2.0-only
/*
 * The switch, the counters and the module parameters of claims in the DLM.
 *
 * Makes a cluster of one node and a lockspace, and is their dlm_controld. So
 * it needs root, and a DLM that nobody uses.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <linux/dlm_device.h>

#include "../kselftest.h"

#define NAME		"kselftest"
#define CLUSTER		"/sys/kernel/config/dlm/cluster"
#define COMM		CLUSTER "/comms/1"
#define SPACE		CLUSTER "/spaces/" NAME
#define NODE		SPACE "/nodes/1"
#define LOCKSPACE	"/sys/kernel/dlm/" NAME
#define SWITCH		LOCKSPACE "/claim"
#define COUNTERS	"/sys/kernel/debug/dlm/" NAME "_claim"
#define PARAMETERS	"/sys/module/dlm/parameters/"

static const char * const counters[] = {
	"claims", "claims_strict", "batches", "confirmed", "refusals",
	"merges", "recovered", "dropped", "capped", "retries", "resent",
	"lookups", "answered", "refused", "barrier_waits", "barrier_wait_us",
	"barrier_wait_max_us", "pending", "parked", "agreed",
};

/* Returns 0 or a negative error. */
static int put(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY), error = 0;

	if (fd < 0)
		return -errno;
	if (write(fd, data, len) != (ssize_t)len)
		error = -errno;
	close(fd);
	return error;
}

static int put_text(const char *path, const char *text)
{
	return put(path, text, strlen(text));
}

static bool reads(const char *path, const char *wanted)
{
	char text[64];
	int fd = open(path, O_RDONLY);
	ssize_t len;

	if (fd < 0)
		return false;
	len = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (len < 0)
		return false;
	text[len] = '\0';
	return !strcmp(text, wanted);
}

static void need(int error, const char *what)
{
	if (error)
		ksft_exit_fail_msg("%s: %s\n", what, strerror(-error));
}

static void make_directory(const char *path)
{
	need(mkdir(path, 0755) ? -errno : 0, path);
}

static void make_cluster(void)
{
	struct sockaddr_storage addr = { };
	struct sockaddr_in *in = (struct sockaddr_in *)&addr;

	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);

	make_directory(CLUSTER);
	make_directory(COMM);
	need(put_text(COMM "/nodeid", "1"), "nodeid");
	need(put(COMM "/addr", &addr, sizeof(addr)), "addr");
	need(put_text(COMM "/local", "1"), "local");
	make_directory(SPACE);
	make_directory(NODE);
	need(put_text(NODE "/nodeid", "1"), "nodeid of the member");
}

static void remove_cluster(void)
{
	rmdir(NODE);
	rmdir(SPACE);
	rmdir(COMM);
	rmdir(CLUSTER);
}

/* Creates or removes the lockspace; returns what the device says. */
static int ask_device(int fd, __u8 cmd, int minor)
{
	char room[sizeof(struct dlm_write_request) + sizeof(NAME)] = { };
	struct dlm_write_request *req = (void *)room;
	int done;

	req->version[0] = DLM_DEVICE_VERSION_MAJOR;
	req->version[1] = DLM_DEVICE_VERSION_MINOR;
	req->version[2] = DLM_DEVICE_VERSION_PATCH;
	req->is64bit = sizeof(long) == 8;
	req->cmd = cmd;
	if (cmd == DLM_USER_CREATE_LOCKSPACE)
		memcpy(req->i.lspace.name, NAME, sizeof(NAME));
	else
		req->i.lspace.minor = minor;
	done = write(fd, room, sizeof(room));
	return done < 0 ? -errno : done;
}

/* As dlm_controld does it: says that this node may go on, within 10 s. */
static void answer(bool joins, int child)
{
	int tries, status;

	for (tries = 0; tries < 1000; tries++) {
		if (waitpid(child, &status, WNOHANG) == child) {
			need(WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -EIO,
			     "the lockspace's creation or removal");
			return;
		}
		if (joins && !access(LOCKSPACE "/id", W_OK)) {
			put_text(LOCKSPACE "/id", "1");
			put_text(LOCKSPACE "/control", "1");
			joins = false;
		}
		if (!joins)
			put_text(LOCKSPACE "/event_done", "0");
		usleep(10000);
	}
	ksft_exit_fail_msg("the DLM did not finish within 10 s\n");
}

/* The device's minor number comes back by a pipe. */
static int lockspace(int fd, __u8 cmd, int minor)
{
	int ends[2], child, result = -EIO;

	need(pipe(ends) ? -errno : 0, "pipe");
	child = fork();
	need(child < 0 ? -errno : 0, "fork");
	if (!child) {
		result = ask_device(fd, cmd, minor);
		if (write(ends[1], &result, sizeof(result)) != sizeof(result))
			_exit(1);
		_exit(result < 0);
	}
	answer(cmd == DLM_USER_CREATE_LOCKSPACE, child);
	if (read(ends[0], &result, sizeof(result)) != sizeof(result))
		result = -EIO;
	close(ends[0]);
	close(ends[1]);
	need(result < 0 ? result : 0, "lockspace");
	return result;
}

static bool mode_is(const char *path, mode_t mode)
{
	struct stat st;

	return !stat(path, &st) && (st.st_mode & 0777) == mode;
}

static void test_switch(void)
{
	ksft_test_result(reads(SWITCH, "off\n"), "the claim is off at first\n");
	ksft_test_result(mode_is(SWITCH, 0644), "root may switch it, all may read it\n");
	ksft_test_result(!put_text(SWITCH, "on") && reads(SWITCH, "on\n"),
			 "it is switched on\n");
	ksft_test_result(!put_text(SWITCH, "strict\n") && reads(SWITCH, "strict\n"),
			 "it is switched to strict, by a line\n");
	ksft_test_result(put_text(SWITCH, "maybe") == -EINVAL &&
			 put_text(SWITCH, "of") == -EINVAL &&
			 put_text(SWITCH, "\n") == -EINVAL &&
			 reads(SWITCH, "strict\n"),
			 "other words are refused and change nothing\n");
	ksft_test_result(!put_text(SWITCH, "off") && reads(SWITCH, "off\n"),
			 "it is switched off\n");
}

/* Each counter once, in its order; one node agrees with itself. */
static bool counters_are_new(void)
{
	FILE *file = fopen(COUNTERS, "r");
	unsigned long long value;
	unsigned int i;
	char name[32];
	bool good = file;

	for (i = 0; good && i < ARRAY_SIZE(counters); i++)
		good = fscanf(file, "%31s %llu", name, &value) == 2 &&
		       !strcmp(name, counters[i]) &&
		       value == !strcmp(name, "agreed");
	if (good)
		good = fscanf(file, "%31s", name) == EOF;
	else
		ksft_print_msg("counter %u is %s\n", i, file ? name : "missing");
	if (file)
		fclose(file);
	return good;
}

static void test_counters(void)
{
	ksft_test_result(mode_is(COUNTERS, 0444), "the counters may be read only\n");
	ksft_test_result(counters_are_new(), "the counters are all there\n");
}

static void test_parameter(const char *path, const char *stock,
			   const char *least, const char *less,
			   const char *most, const char *more)
{
	bool good = reads(path, stock) &&
		    !put_text(path, least) && !put_text(path, most) &&
		    put_text(path, less) && put_text(path, more) &&
		    reads(path, most) && !put_text(path, stock);

	ksft_test_result(good, "%s keeps its limits\n", strrchr(path, '/') + 1);
}

int main(void)
{
	int control, monitor, minor;

	ksft_print_header();
	if (access("/sys/kernel/config/dlm", F_OK))
		ksft_exit_skip("there is no DLM, or configfs is not mounted\n");
	if (geteuid())
		ksft_exit_skip("needs root\n");
	if (!access(CLUSTER, F_OK))
		ksft_exit_skip("the DLM is in use\n");
	if (access(PARAMETERS "claim_batch_us", F_OK))
		ksft_exit_skip("the DLM has no CONFIG_DLM_CLAIM\n");

	/* before there is a cluster: so the DLM knows that it is watched */
	monitor = open("/dev/dlm-monitor", O_RDONLY);
	control = open("/dev/dlm-control", O_RDWR);
	if (monitor < 0 || control < 0)
		ksft_exit_skip("there are no devices of the DLM in /dev\n");

	ksft_set_plan(10);
	make_cluster();
	minor = lockspace(control, DLM_USER_CREATE_LOCKSPACE, 0);

	test_switch();
	test_counters();
	test_parameter(PARAMETERS "claim_batch_us", "10000\n",
		       "10\n", "9\n", "1000000\n", "1000001\n");
	test_parameter(PARAMETERS "claim_resend_ms", "10000\n",
		       "100\n", "99\n", "3600000\n", "3600001\n");

	lockspace(control, DLM_USER_REMOVE_LOCKSPACE, minor);
	remove_cluster();
	close(control);
	close(monitor);
	ksft_finished();
}
