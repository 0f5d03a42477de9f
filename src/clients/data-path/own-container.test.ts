import { describe, expect, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { startScriptedEngine } from '#testbed/scripted-engine.ts';
import { createDockerClient } from '#wire/docker/client.ts';
import { findOwnContainer, possibleIds } from './own-container.ts';

const id = 'ab12'.repeat(16);
const other = 'cd34'.repeat(16);
const noEvidence = { mountinfo: '', cgroup: '', hostname: 'machine' };
const { signal } = new AbortController();

describe('candidates for the id of the own container', () => {
  test.each([
    ['Docker', `612 590 8:1 /var/lib/docker/containers/${id}/hostname /etc/hostname rw,relatime - ext4 /dev/sda1 rw`],
    [
      'Podman',
      `701 690 0:25 /containers/storage/overlay-containers/${id}/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw`,
    ],
    [
      'an engine in a container',
      `9 1 8:1 /docker/volumes/${other}/_data/containers/${id}/hosts /etc/hosts rw - ext4 a rw`,
    ],
  ])('come from the mounts: %s', (_, mountinfo) => {
    expect(possibleIds({ ...noEvidence, mountinfo })).toEqual([id]);
  });

  test.each([
    `12:memory:/docker/${id}`,
    `0::/system.slice/docker-${id}.scope`,
    `0::/machine.slice/libpod-${id}.scope/container`,
  ])('come from the cgroups: %s', (cgroup) => {
    expect(possibleIds({ ...noEvidence, cgroup })).toEqual([id]);
  });

  test('come from the host name if it looks like an id', () => {
    expect(possibleIds({ ...noEvidence, hostname: 'ab12ab12ab12' })).toEqual(['ab12ab12ab12']);
  });

  test('do not include other containers of the machine', () => {
    const mountinfo = `40 22 0:30 / /var/lib/docker/containers/${id}/mounts/shm rw - tmpfs shm rw`;
    expect(possibleIds({ ...noEvidence, mountinfo, cgroup: '0::/system.slice/stowage.service' })).toEqual([]);
  });
});

describe('the own container', () => {
  const found = {
    Id: id,
    Name: '/stowage',
    Image: 'sha256:1',
    Mounts: [] as object[],
    State: { Status: 'running', Running: true, Pid: 1, ExitCode: 0 },
    NetworkSettings: { Networks: { host: {} } },
  };
  async function findWith(answer: object, evidence: Partial<typeof noEvidence>, status = 200) {
    await using engine = await startScriptedEngine((_path, _request, response) => {
      response.writeHead(status).end(JSON.stringify(answer));
    });
    using client = createDockerClient({ socket: engine.socket, clock: systemClock() });
    return await findOwnContainer({ ...noEvidence, ...evidence }, [client], signal);
  }
  const cgroupEvidence = { cgroup: `0::/docker/${id}` };

  test('is found as its engine describes it', async () => {
    const mounts = [
      { Type: 'bind', Source: '/srv', Destination: '/run' },
      { Type: 'bind', Source: '/host/run/stowage', Destination: '/run/stowage' },
      { Type: 'tmpfs', Source: '', Destination: '/run/stowage/keepers/other' },
    ];
    const own = await findWith({ ...found, Mounts: mounts }, cgroupEvidence);
    expect(own).toMatchObject({ id, image: 'sha256:1', onHostNetwork: true });
    expect(own?.hostPath('/run/stowage/keepers/host')).toBe('/host/run/stowage/keepers/host');
    expect(own?.hostPath('/run/stowage')).toBe('/host/run/stowage');
    expect(own?.hostPath('/run/stowage2')).toBe('/srv/stowage2');
    expect(own?.hostPath('/var/lib')).toBeUndefined();
  });

  test('is not found if the engine does not know it, as for a managed plugin', async () => {
    expect(await findWith({ message: 'No such container' }, cgroupEvidence, 404)).toBeUndefined();
  });

  test('is not found if only the name of a container matches', async () => {
    expect(await findWith({ ...found, Id: other }, { hostname: 'ab12ab12ab12' })).toBeUndefined();
  });

  test('cannot be determined while the engine fails', async () => {
    await expect(findWith({ message: 'no' }, cgroupEvidence, 500)).rejects.toThrow('no');
  });
});
