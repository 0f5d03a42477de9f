import { execFileSync } from 'node:child_process';
import { expect, test } from 'vitest';

test('tests, and the programs that they start, have the usual umask', () => {
  expect(process.umask()).toBe(0o022);
  expect(execFileSync('sh', ['-c', 'umask'], { encoding: 'utf8' }).trim()).toBe('0022');
});

test('tests, and the programs that they start, know of no server or cluster of the user', () => {
  const env = execFileSync('env', { encoding: 'utf8' });
  expect(env).toMatch(/^PATH=/m);
  expect(env).not.toMatch(/^(STOWAGE_(SOCKET|URL|TOKEN)|KUBECONFIG|KUBERNETES_SERVICE_HOST|DOCKER_HOST)=/m);
});
