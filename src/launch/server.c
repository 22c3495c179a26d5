/* server.c - whether the launcher's PMIx server, whose address is in the environment, accepts connections.
 *
 * Asked before MPI starts: without its server Open MPI 4.1 ends the process in MPI_Init, or starts it as
 * a run of its own, and PMIx waits minutes for a host that does not answer. A server writes its address
 * once for each version of its messages (PMIX_SERVER_URI41, PMIX_SERVER_URI4, ...), and PMIx takes the
 * newest that it knows and no other: so does this file. */
#include "src/launch/pmix.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern char **environ;

enum { CONNECT_MS = 30000, ADDRESS_BYTES = 512 };

#define URI "PMIX_SERVER_URI"

/* 0, or an errno; within CONNECT_MS. */
static int try_connect(const struct addrinfo *a)
{
  const int64_t end_ns = tc_now_ns() + INT64_C(1000000) * CONNECT_MS;
  int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), problem = 0;
  if (fd < 0) return errno;
  if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) problem = errno;
  if (problem == EINPROGRESS) {
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    socklen_t size = sizeof problem;
    int n;
    do n = poll(&p, 1, (int)TC_MAX(0, (end_ns - tc_now_ns() + 999999) / 1000000));
    while (n < 0 && errno == EINTR);
    if (n == 0) problem = ETIMEDOUT;
    else if (n < 0 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &size) != 0) problem = errno;
  }
  close(fd);
  return problem;
}

/* "HOST:PORT", where an IPv6 HOST may be in brackets. NULL: accepts a connection; else what is wrong. */
static const char *try_address(const char *address)
{
  const struct addrinfo numeric = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                    .ai_socktype = SOCK_STREAM };
  struct addrinfo *found;
  char host[ADDRESS_BYTES];
  snprintf(host, sizeof host, "%s", address + (*address == '['));
  char *port = strrchr(host, ':');
  if (!port) return "it is not HOST:PORT";
  *port++ = 0;
  if (port - 2 >= host && port[-2] == ']') port[-2] = 0;
  if (!*port || getaddrinfo(host, port, &numeric, &found) != 0) return "it is not HOST:PORT";
  int problem = try_connect(found);
  freeaddrinfo(found);
  return problem ? strerror(problem) : NULL;
}

/* The newest version of messages that the loaded PMIx, "OpenPMIX 4.2.2, ...", may know: 49. */
static int newest_known(const char *text)
{
  const int major = atoi(text + strcspn(text, "0123456789"));
  return major > 0 && major < 10 ? 10 * major + 9 : INT_MAX;
}

/* "PMIX_SERVER_URI41=..." -> 41, "PMIX_SERVER_URI4=..." -> 40; 0: it is not such a variable. */
static int uri_version(const char *variable)
{
  const size_t n = strlen(URI);
  if (strncmp(variable, URI, n) != 0) return 0;
  const size_t digits = strspn(variable + n, "0123456789");
  if (digits < 1 || digits > 2 || variable[n + digits] != '=') return 0;
  return atoi(variable + n) * (digits == 1 ? 10 : 1);
}

#define REMEDY "start with srun --mpi=pmix or Open MPI's mpirun, or without PMIX_* in the environment"

int tc_server_answers(const char *pmix_version, struct tc_err *err)
{
  const char *found = NULL;
  const int known = newest_known(pmix_version);
  for (char **e = environ; *e; e++) {
    const int version = uri_version(*e);
    if (version > (found ? uri_version(found) : 0) && version <= known) found = *e;
  }
  if (!found)
    return tc_fail(err, TC_EPEER, "PMIX_NAMESPACE = %s is a launcher's, but " URI "*, the address of its PMIx "
                   "server, is not in the environment: " REMEDY, tc_env("PMIX_NAMESPACE"));
  const char *tcp = strstr(found, ";tcp4://");         /* of "ID;tcp4://HOST:PORT" */
  if (!tcp) tcp = strstr(found, ";tcp6://");
  if (!tcp) return TC_OK;                              /* PMIx will see */
  const char *problem = try_address(tcp + strlen(";tcp4://"));
  if (problem)
    return tc_fail(err, TC_EPEER, "the launcher's PMIx server does not answer (%s: %s); the launcher has "
                   "ended, or runs on another host: " REMEDY, found, problem);
  return TC_OK;
}
