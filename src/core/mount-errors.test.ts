import { expect, test } from 'vitest';
import { redactForUser } from './error-disclosure.ts';
import type { NodeName, SeenUse, User, Volume } from './model.ts';
import { engineNotAnswering, inUseElsewhere, volumeInUse } from './mount-errors.ts';

const volume = { store: 'silver', name: 'photos' } as Volume;
const node = 'one' as NodeName;
const path = (name: string): User => ({ kind: 'path', name, node });
const container = (name: string): User => ({ kind: 'container', name, node });
const paths = ['/mnt/x', '/var/lib/kubelet/pods/7/volumes/v'];
const redacted = (trouble: Parameters<typeof redactForUser>[0]) => redactForUser(trouble, 'in the log');

test('users do not see mount paths, but administrators do', () => {
  const error = volumeInUse(volume, 'deleted', [...paths.map(path), container('web')]);
  expect(error.message).toBe(
    "volume 'silver/photos' cannot be deleted: it is used by path /mnt/x on one, path /var/lib/kubelet/pods/7/volumes/v on one, container web on one",
  );
  expect(redacted(error)).toEqual({
    code: 'in-use',
    reason: 'volume-in-use',
    message: "volume 'silver/photos' cannot be deleted: it is used by container web on one, 2 mounts on one",
    action:
      'Remove the containers that use it, including stopped ones. Ask the administrator to unmount it at other paths, which this lists: stowage mounts',
  });
  expect(redacted(volumeInUse(volume, 'deleted', [path('/mnt/x')])).message).toMatch(/: it is used by a mount on one$/);
});

test('everybody sees the names of containers, with an action', () => {
  const error = volumeInUse(volume, 'deleted', ['a', 'b', 'c', 'd', 'e', 'f'].map(container));
  expect(error.message).toMatch(/container e on one and 1 more$/);
  const { code, reason, message, action } = error;
  expect(redacted(error)).toEqual({ code, reason, message, action });
  expect(action).toBe('Remove those containers first, stopped ones too: docker rm NAME, or podman rm NAME');
});

test('users do not see mount paths of other hosts', () => {
  const use: SeenUse = {
    host: 'h2',
    node: 'two' as NodeName,
    writer: false,
    renewedAt: 0,
    stale: true,
    users: [
      { kind: 'path', name: '/mnt/x' },
      { kind: 'container', name: 'web' },
    ],
  };
  const error = inUseElsewhere(volume, 'renamed', [use]);
  expect(error.message).toMatch(
    /by host two \(h2, path \/mnt\/x, container web, silent since 1970-01-01T00:00:00\.000Z\)$/,
  );
  expect(redacted(error).message).toMatch(
    /by host two \(h2, container web, a mount, silent since 1970-01-01T00:00:00\.000Z\)$/,
  );
  expect(redacted(error).action).toBe(error.action);
});

test('users see the short text of an error that was restored from a record', () => {
  const { code, reason, message, action } = volumeInUse(volume, 'deleted', [path('/mnt/x')]);
  expect(redacted({ code, reason, message, action }).message).toBe('it is in use');
});

test('no removal of a container is suggested for an engine mount whose container is unknown', () => {
  const error = volumeInUse(volume, 'deleted', [container('stowage')]);
  expect(error.message).toBe(
    "volume 'silver/photos' cannot be deleted: it is used by a mount for a container that is not known yet (driver stowage) on one",
  );
  expect(error.action).toMatch(/^Try again in a moment.*docker ps -a --filter volume=NAME/);
  expect(error.action).not.toContain('docker rm');
  expect(redacted(error)).toMatchObject({ message: error.message, action: error.action });
});

test('the error names an engine that does not answer, with an action, and hides its socket from users', () => {
  const why = 'container engine podman does not answer (connect ECONNREFUSED /run/podman/podman.sock)';
  const error = engineNotAnswering(volume, 'renamed', [{ kind: 'podman', why }]);
  expect(error.message).toBe(
    `volume 'silver/photos' cannot be renamed: unknown whether containers of podman use it: ${why}`,
  );
  expect(error.action).toMatch(/podman\.socket.*--podman-socket none/);
  expect(redacted(error)).toMatchObject({
    code: 'unavailable',
    message: "volume 'silver/photos' cannot be renamed: podman does not answer, and containers there may use it",
  });
});
