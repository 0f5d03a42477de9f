import type { ServerResponse } from 'node:http';
import { describe, expect, test } from 'vitest';
import { administrator, asAnyObject, defaultTimeoutMs, paths, takeOverFixture } from '#testing/take-over-fixture.ts';
import type { PersistentVolumeClaim } from '#wire/kube/types.ts';

const it = takeOverFixture();
const { claim, provisioned, run, refused } = it;

describe('when Kubernetes does not accept the new claim', () => {
  const quota = 'persistentvolumeclaims "data" is forbidden: exceeded quota: small, used: persistentvolumeclaims=1';
  /** Refuses this method on claims that many times. */
  function failing(method: string, times: number, answer: (response: ServerResponse) => void): void {
    let left = times;
    it.api.intercept = ({ method: asked, url = '', headers }, response) => {
      const isMeant = asked === method && url.includes('/persistentvolumeclaims');
      if (!isMeant || headers['user-agent'] !== administrator || left <= 0) return false;
      left--;
      answer(response);
      return true;
    };
  }
  const noRoom = (response: ServerResponse): void => it.api.refuse(response, 403, 'Forbidden', { message: quota });

  test.each<[string, (response: ServerResponse) => void]>([
    ['an exceeded quota', noRoom],
    ['a conflict on a quota', (response) => it.api.refuse(response, 409, 'Conflict')],
    ['too many requests', (response) => it.api.refuse(response, 429, 'TooManyRequests')],
    ['an internal server error', (response) => it.api.refuse(response, 500, 'InternalError')],
    ['a lost answer', (response) => void response.destroy()],
  ])('retries after %s', async (_, answer) => {
    const from = provisioned('subdir');
    failing('POST', 3, answer);
    await run('take');
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
    failing('POST', 3, answer);
    await run('undo');
    expect((await claim())?.spec.volumeName).toBe(from);
  });

  test.each(['DELETE', 'GET'])('retries after a lost %s', async (method) => {
    const from = provisioned('csi');
    let isDeleted = method === 'DELETE';
    let times = 2;
    it.api.intercept = ({ method: asked, url = '', headers }, response) => {
      if (headers['user-agent'] !== administrator || !url.includes('/persistentvolumeclaims/')) return false;
      const isLost = isDeleted && asked === method && times-- > 0;
      isDeleted ||= asked === 'DELETE';
      if (isLost) response.destroy();
      return isLost;
    };
    await run('take');
    expect(times).toBeLessThanOrEqual(0);
    expect((await claim())?.spec.volumeName).toBe(`${from}-stowage`);
  });

  test.each<[string, (response: ServerResponse) => void]>([
    ['exceeded quota', noRoom],
    ['no webhook', (response) => it.api.refuse(response, 403, 'Forbidden', { message: 'no webhook lets it' })],
  ])('says that the claim is gone, and where it is recorded: %s', async (why, answer) => {
    const from = provisioned('subdir');
    it.waitFor(100);
    failing('POST', Number.POSITIVE_INFINITY, answer);
    const was = await claim();
    const error = await refused('take');
    expect(error).toMatchObject({
      message: expect.stringMatching(`^the claim was deleted, and could not be recreated yet: .*${why}`),
      action: expect.stringContaining(
        `annotation stowage.dev/taken-over-claim of the PersistentVolume ${from}-stowage`,
      ),
    });
    expect(error?.action).toContain('Repeat the command');
    expect(await claim()).toBeUndefined();
    failing('POST', 0, answer);
    it.waitFor(defaultTimeoutMs);
    await run('take');
    expect((await claim())?.spec).toEqual({ ...was?.spec, volumeName: `${from}-stowage` });
  });

  test('deletes only the version of the claim that was recorded', async () => {
    provisioned('subdir');
    let isFirst = true;
    const { spec, ...rest } = (await claim()) as PersistentVolumeClaim;
    it.api.intercept = ({ method, url = '' }) => {
      // A user enlarges the claim at that moment.
      if (method === 'DELETE' && url.includes('/persistentvolumeclaims') && isFirst) {
        isFirst = false;
        it.api.put(
          paths.claims,
          asAnyObject({ ...rest, spec: { ...spec, resources: { requests: { storage: '3Gi' } } } }),
        );
      }
      return false;
    };
    await run('take');
    expect((await claim())?.spec.resources).toEqual({ requests: { storage: '3Gi' } });
  });
});
